def rank_gradient(micro_batches, comm):
    """What this rank hands to data parallelism, which averages it over the ranks."""
    # This averages each micro-batch, then the micro-batches: a mean of means.
    means = []
    for micro_batch in micro_batches:
        valid = [gradient for gradient, label in micro_batch if label != -100]
        means.append(sum(valid) / len(valid))
    return sum(means) / len(means)
