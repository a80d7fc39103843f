"""The grader's optimum is the optimum: compared with a search that tries every order, waits included."""

from functools import cache
from itertools import product

import pytest

from pdtlib.exercises.ch04_memory_cap.optimum import shortest_length


def every_order(stages: int, microbatches: int, cap: int, *, within: int) -> bool:
    """Whether a step of at most ``within`` units exists. Nothing is pruned but states met before."""
    goal = ((microbatches,) * 3,) * stages

    def choices(state, s):
        f, b, w = state[s]
        found = [state[s]]  # to wait is always allowed
        if b < (f if s == stages - 1 else state[s + 1][1]):
            found.append((f, b + 1, w))
        if f < (microbatches if s == 0 else state[s - 1][0]) and f - w < cap:
            found.append((f + 1, b, w))
        if w < b:
            found.append((f, b, w + 1))
        return found

    @cache
    def reachable(state, left) -> bool:
        if state == goal:
            return True
        if left < max(3 * microbatches - sum(counts) for counts in state):
            return False
        return any(
            reachable(after, left - 1) for after in product(*(choices(state, s) for s in range(stages)))
        )

    return reachable(((0, 0, 0),) * stages, within)


@pytest.mark.parametrize(
    ("stages", "microbatches", "cap"),
    [(1, 3, 1), (2, 3, 1), (2, 4, 2), (2, 3, 3), (3, 3, 1), (3, 3, 2), (3, 4, 3)],
)
def test_no_order_is_shorter(stages: int, microbatches: int, cap: int) -> None:
    best = shortest_length(stages, microbatches, cap)
    assert every_order(stages, microbatches, cap, within=best)
    assert not every_order(stages, microbatches, cap, within=best - 1)


def test_enough_memory_reaches_the_last_stages_bound() -> None:
    """It can't start before p - 1 and has 3 m units of work; memory for p micro-batches is enough."""
    for stages, microbatches in ((2, 5), (3, 6), (4, 8)):
        bound = 3 * microbatches + stages - 1
        assert shortest_length(stages, microbatches, 2 * stages) == bound
        assert shortest_length(stages, microbatches, stages) == bound
        assert shortest_length(stages, microbatches, stages - 1) > bound
