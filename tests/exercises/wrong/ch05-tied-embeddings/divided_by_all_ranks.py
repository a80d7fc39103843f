# says: This divides by the stages as well
def tied_gradient(grad, comm):
    """Cut and add over the replicas first, then add equal pieces over the two stages."""
    piece = yield from comm.reduce_scatter(grad, "dp")
    piece = yield from comm.all_reduce(piece, "pp")
    return [value / comm.size("dp") / comm.size("pp") for value in piece]
