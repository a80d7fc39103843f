def rank_gradient(micro_batches, comm):
    """Sum over this rank's valid tokens / valid tokens of all ranks, times N to undo the mean over ranks."""
    valid = [gradient for micro_batch in micro_batches for gradient, label in micro_batch if label != -100]
    total = yield comm.all_reduce(len(valid))
    if total == 0:
        return 0.0
    return comm.world_size * sum(valid) / total
