"""Which rank sits where in the mesh, and with whom it forms groups.

A rank is a number in a mixed base whose digits are its coordinates on the axes. The order says which digit
runs fastest: ranks next to each other share a node, so the axis with the most traffic comes first. Megatron's
order is tp, cp, dp, pp; the article lets dp run slowest: tp, cp, pp, dp.
"""

from collections.abc import Sequence

from pdtlib.plan.spec import Parallel

AXES = ("tp", "cp", "dp", "pp")
MEGATRON_ORDER = ("tp", "cp", "dp", "pp")
ARTICLE_ORDER = ("tp", "cp", "pp", "dp")


def check_order(order: Sequence[str]) -> None:
    """Raise ``ValueError`` unless ``order`` names every axis once, the fastest first."""
    if sorted(order) != sorted(AXES):
        raise ValueError(f"order={tuple(order)}; valid: tp, cp, dp and pp, each once")


def coordinates(rank: int, *, parallel: Parallel, order: Sequence[str] = MEGATRON_ORDER) -> dict[str, int]:
    """The rank's place on every axis.

    >>> coordinates(9, parallel=Parallel(tp=8, pp=2, dp=2), order=ARTICLE_ORDER)
    {'tp': 1, 'cp': 0, 'pp': 1, 'dp': 0}
    """
    check_order(order)
    if not 0 <= rank < parallel.world_size:
        raise ValueError(f"rank={rank}; valid: 0 to {parallel.world_size - 1}")
    place = {}
    for axis in order:
        rank, place[axis] = divmod(rank, getattr(parallel, axis))
    return place


def rank_at(place: dict[str, int], *, parallel: Parallel, order: Sequence[str] = MEGATRON_ORDER) -> int:
    """The rank at these coordinates; the inverse of :func:`coordinates`.

    >>> place = {"tp": 1, "cp": 0, "pp": 1, "dp": 0}
    >>> rank_at(place, parallel=Parallel(tp=8, pp=2, dp=2), order=ARTICLE_ORDER)
    9
    """
    check_order(order)
    rank, stride = 0, 1
    for axis in order:
        degree = getattr(parallel, axis)
        if not 0 <= place[axis] < degree:
            raise ValueError(f"{axis}={place[axis]}; valid: 0 to {degree - 1}")
        rank += place[axis] * stride
        stride *= degree
    return rank


def group_of(
    rank: int, axis: str, *, parallel: Parallel, order: Sequence[str] = MEGATRON_ORDER
) -> tuple[int, ...]:
    """The ranks that differ from this one on ``axis`` alone, in the axis's order, itself included.

    >>> group_of(0, "pp", parallel=Parallel(dp=16, tp=8, pp=8), order=ARTICLE_ORDER)
    (0, 8, 16, 24, 32, 40, 48, 56)
    """
    if axis not in AXES:
        raise ValueError(f"axis={axis!r}; valid: {', '.join(AXES)}")
    place = coordinates(rank, parallel=parallel, order=order)
    return tuple(
        rank_at({**place, axis: index}, parallel=parallel, order=order)
        for index in range(getattr(parallel, axis))
    )


def groups(axis: str, *, parallel: Parallel, order: Sequence[str] = MEGATRON_ORDER) -> list[tuple[int, ...]]:
    """All groups of an axis; every rank is in exactly one."""
    found: dict[tuple[int, ...], None] = {}
    for rank in range(parallel.world_size):
        found.setdefault(group_of(rank, axis, parallel=parallel, order=order))
    return list(found)


def nodes_of(group: Sequence[int], *, gpus_per_node: int) -> tuple[int, ...]:
    """The nodes that a group touches, in order; more than one means traffic over the network."""
    return tuple(sorted({rank // gpus_per_node for rank in group}))
