# says: valid: dp, pp
def tied_gradient(grad, comm):
    """Cut and add over the replicas first, then add equal pieces over the two stages."""
    piece = yield from comm.reduce_scatter(grad, "dp")
    piece = yield from comm.all_reduce(piece, "tp")
    return [value / comm.size("dp") for value in piece]
