from math import sqrt


def wall_time(work, interval, save, restart, failures):
    """When a run is over that fails at these moments."""
    saves = -(-work // interval)
    return work + saves * save  # nothing ever fails here


def best_interval(mtbf, save):
    """How long to work between two saves."""
    return sqrt(2 * save * mtbf)  # is a long save possible, too?
