# says: mean of means
def rank_gradient(micro_batches, comm):
    means = []
    for micro_batch in micro_batches:
        valid = [gradient for gradient, label in micro_batch if label != -100]
        means.append(sum(valid) / len(valid))
    return sum(means) / len(means)
