def rank_heads(heads, kv_heads, tp, rank):
    """The query heads and the key and value heads of a rank, as two lists."""
    if heads % kv_heads or heads % tp:
        raise ValueError(f"heads={heads} must be a multiple of kv_heads={kv_heads} and of tp={tp}")
    if kv_heads % tp and tp % kv_heads:
        raise ValueError(f"kv_heads={kv_heads} and tp={tp}: one must be a multiple of the other")
    per_rank = heads // tp
    queries = list(range(rank * per_rank, (rank + 1) * per_rank))
    group = heads // kv_heads
    keys = list(range(queries[0] // group, queries[-1] // group + 1))
    return queries, keys
