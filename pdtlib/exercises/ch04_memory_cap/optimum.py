"""The shortest step under a memory cap, exactly, when F, B and W take one unit each.

Micro-batches are alike, so an exchange puts them in order on every stage; then a state of the pipeline is,
for each stage, how many F, B and W it has done. A state that is ahead of another in every count can follow
whatever that one does next: it waits where the action is done already, and at each of the other's forwards it
holds no more, since it has done at least as many W and the same number of F. So only states that none is
ahead of need be kept, and a stage that can act need not wait.
"""

from functools import lru_cache
from itertools import product

Counts = tuple[int, int, int]  # F, B, W done
State = tuple[Counts, ...]


@lru_cache(maxsize=256)
def shortest_length(stages: int, microbatches: int, cap: int) -> int:
    """Units of time from the first start to the last end.

    >>> shortest_length(4, 8, 8), shortest_length(4, 8, 4), shortest_length(4, 8, 3), shortest_length(4, 8, 1)
    (27, 27, 31, 72)
    """
    goal: State = ((microbatches,) * 3,) * stages
    reached: set[State] = {((0, 0, 0),) * stages}
    length = 0
    while goal not in reached:
        following = {
            after
            for state in reached
            for after in product(*(_choices(state, s, microbatches, cap) for s in range(stages)))
        }
        reached = _foremost(following)
        length += 1
    return length


def _choices(state: State, s: int, microbatches: int, cap: int) -> list[Counts]:
    forwards, backwards, weights = state[s]
    arrived_back = forwards if s == len(state) - 1 else state[s + 1][1]
    arrived = microbatches if s == 0 else state[s - 1][0]
    found = []
    if backwards < arrived_back:
        found.append((forwards, backwards + 1, weights))
    if forwards < arrived and forwards - weights < cap:
        found.append((forwards + 1, backwards, weights))
    if weights < backwards:
        found.append((forwards, backwards, weights + 1))
    return found or [state[s]]


def _foremost(states: set[State]) -> set[State]:
    """The states that no other one is ahead of."""
    kept: list[tuple[int, ...]] = []
    foremost = set()
    for state in sorted(states, key=lambda state: -sum(map(sum, state))):
        flat = tuple(count for counts in state for count in counts)
        if not any(all(ours >= theirs for ours, theirs in zip(other, flat, strict=True)) for other in kept):
            kept.append(flat)
            foremost.add(state)
    return foremost
