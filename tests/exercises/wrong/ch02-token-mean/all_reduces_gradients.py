# says: left to data parallelism
def rank_gradient(micro_batches, comm):
    valid = [gradient for micro_batch in micro_batches for gradient, label in micro_batch if label != -100]
    total = yield comm.all_reduce(sum(valid))
    if total == 0:
        return 0.0
    return comm.world_size * sum(valid) / total
