from math import pi, sin


def descend(step, delay, curvature, updates):
    """x after 0, 1, ..., updates updates, each with a gradient that is delay updates old."""
    x = [1.0]
    for n in range(updates):
        old = x[n - delay] if n >= delay else 1.0
        x.append(x[n] - step * curvature * old)
    return x


def stable_step(delay, curvature):
    """The step above which the delayed descent grows."""
    return 2 * sin(pi / (2 * (2 * delay + 1))) / curvature
