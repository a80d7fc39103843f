# says: Too small by the number of ranks
def rank_gradient(micro_batches, comm):
    valid = [gradient for micro_batch in micro_batches for gradient, label in micro_batch if label != -100]
    total = yield comm.all_reduce(len(valid))
    if total == 0:
        return 0.0
    return sum(valid) / total
