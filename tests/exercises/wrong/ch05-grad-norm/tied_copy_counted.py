# says: The tied copy is counted
def grad_norm(parameters, tp_rank, comm, max_norm):
    """Cut parameters count on every rank, whole ones on tensor-parallel rank 0, tied copies not at all."""
    squares = 0.0
    for parameter in parameters:
        counts_here = parameter["cut"] or tp_rank == 0
        if counts_here:
            squares += sum(value * value for value in parameter["grad"])
    (total,) = yield comm.all_reduce([squares])
    norm = total**0.5
    return norm, min(1.0, max_norm / norm) if norm > 0 else 1.0
