"""Ring all-reduce, step by step: which rank sends which chunk when, and what every rank holds then.

The message is cut into as many equal chunks as there are ranks (:func:`pdtlib.plan.sharding.shard_numel`).
In each step every rank sends one chunk to its right neighbour. The first N-1 steps are a reduce-scatter: the
receiver adds what comes in. The other N-1 are an all-gather: it overwrites (Patarasuk and Yuan 2009,
section 3).
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Transfer:
    """One chunk on its way from ``sender`` to ``receiver`` = sender + 1; ``adds`` in the reduce-scatter."""

    sender: int
    receiver: int
    chunk: int
    adds: bool


def num_steps(ranks: int) -> int:
    """Steps of the whole all-reduce: 2(N-1).

    >>> num_steps(4)
    6
    """
    return 2 * (ranks - 1)


def transfers(ranks: int, step: int) -> tuple[Transfer, ...]:
    """What travels in a step, counted from 0; entry r is what rank r sends.

    >>> [t.chunk for t in transfers(4, 0)], [t.chunk for t in transfers(4, 3)]
    ([0, 1, 2, 3], [1, 2, 3, 0])
    """
    if not 0 <= step < num_steps(ranks):
        raise ValueError(f"step={step}; valid: 0 to {num_steps(ranks) - 1} for {ranks} ranks")
    adds = step < ranks - 1
    return tuple(
        Transfer(rank, (rank + 1) % ranks, (rank - step if adds else rank + ranks - step) % ranks, adds)
        for rank in range(ranks)
    )


def holdings(ranks: int, steps: int) -> list[list[frozenset[int]]]:
    """After so many steps, whose contributions rank r has summed in its chunk c, as ``[r][c]``.

    >>> [sorted(chunk) for chunk in holdings(3, 2)[0]]
    [[0], [0, 1, 2], [0, 2]]
    """
    held = [[frozenset({rank})] * ranks for rank in range(ranks)]
    for step in range(steps):
        sent = [(move, held[move.sender][move.chunk]) for move in transfers(ranks, step)]
        for move, content in sent:
            old = held[move.receiver][move.chunk] if move.adds else frozenset[int]()
            assert not old & content, "a contribution must not be added twice"
            held[move.receiver][move.chunk] = old | content
    return held
