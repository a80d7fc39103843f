def rank_heads(heads, kv_heads, tp, rank):
    """The query heads and the key and value heads of a rank, as two lists."""
    queries = list(range(rank * heads // tp, (rank + 1) * heads // tp))
    # Right while there are at least as many key and value heads as ranks. And if not?
    keys = list(range(rank * kv_heads // tp, (rank + 1) * kv_heads // tp))
    return queries, keys
