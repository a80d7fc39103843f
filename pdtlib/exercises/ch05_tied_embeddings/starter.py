def tied_gradient(grad, comm):
    """This rank's piece of the gradient, averaged over replicas."""
    # Every stage for itself: the copies drift apart.
    piece = yield from comm.reduce_scatter(grad, "dp")
    return [value / comm.size("dp") for value in piece]
