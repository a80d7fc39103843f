# says: add the other copy's
def tied_gradient(grad, comm):
    """Cut and add over the replicas first, then add equal pieces over the two stages."""
    piece = yield from comm.reduce_scatter(grad, "dp")
    return [value / comm.size("dp") for value in piece]
