# says: each rank cares for one piece only
def tied_gradient(grad, comm):
    total = yield from comm.all_reduce(grad, "pp")
    piece = yield from comm.reduce_scatter(total, "dp")
    return [value / comm.size("dp") for value in piece]
