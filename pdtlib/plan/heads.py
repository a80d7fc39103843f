"""Which attention heads a tensor-parallel rank works on, with grouped key and value heads.

Query heads are dealt out in runs, so that a rank's queries find their keys and values on the same rank. Where
there are more ranks than key/value heads, every one of those lives on ``tp / kv_heads`` ranks (Megatron-LM
repeats them so).
"""


def rank_heads(heads: int, kv_heads: int, *, tp: int, rank: int) -> tuple[range, range]:
    """The query heads and the key/value heads of a rank.

    Raises ``ValueError`` for heads that do not divide by ``tp``, key/value heads that neither divide by it
    nor divide it, query heads that are not grouped evenly, and a rank outside the group.

    >>> rank_heads(64, 8, tp=8, rank=1), rank_heads(64, 8, tp=16, rank=3)
    ((range(8, 16), range(1, 2)), (range(12, 16), range(1, 2)))
    """
    if not 0 <= rank < tp:
        raise ValueError(f"rank={rank}; valid: 0 to {tp - 1}")
    if heads % kv_heads:
        raise ValueError(f"kv_heads={kv_heads}: {heads} query heads are not grouped evenly")
    if heads % tp:
        raise ValueError(f"tp={tp}: {heads} query heads do not divide evenly")
    if kv_heads % tp and tp % kv_heads:
        raise ValueError(f"tp={tp}: {kv_heads} key/value heads neither divide by it nor divide it")
    queries = heads // tp
    mine = range(rank * queries, (rank + 1) * queries)
    group = heads // kv_heads
    return mine, range(mine[0] // group, mine[-1] // group + 1)
