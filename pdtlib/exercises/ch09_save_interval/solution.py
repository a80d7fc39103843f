from math import sqrt


def wall_time(work, interval, save, restart, failures):
    """When a run is over that fails at these moments."""
    now, done, coming = 0, 0, list(failures)

    def passes(seconds):
        nonlocal now
        if coming and coming[0] < now + seconds:
            now = coming.pop(0)
            return False
        now += seconds
        return True

    while done < work:
        piece = min(interval, work - done)
        if passes(piece) and passes(save):
            done += piece
            continue
        while not passes(restart):
            pass
    return now


def best_interval(mtbf, save):
    """How long to work between two saves: Daly's estimate."""
    r = sqrt(save / (2 * mtbf))
    return sqrt(2 * save * mtbf) * (1 + r / 3 + r * r / 9) - save
