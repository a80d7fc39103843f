# says: the count does not
def rank_gradient(micro_batches, comm):
    valid = [gradient for micro_batch in micro_batches for gradient, label in micro_batch if label != -100]
    total = yield comm.all_reduce(sum(len(m) for m in micro_batches))
    if total == 0:
        return 0.0
    return comm.world_size * sum(valid) / total
