"""Bytes that collectives move, under ring algorithms.

``message_bytes`` is always the whole logical tensor: the input of a reduce-scatter, the output of an
all-gather, what every rank holds in an all-reduce. ``sent`` is what one rank puts on its link.
"""

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "send")


def sent_bytes(collective: str, message_bytes: float, group_size: int) -> float:
    """Bytes that one rank sends, averaged over the ranks of the group.

    A ring all-reduce is a reduce-scatter and an all-gather, each of which sends (n-1)/n of the message
    (Patarasuk and Yuan 2009). A ring broadcast passes the message on n-1 times, once a rank but the last.
    All-to-all keeps 1/n. A send is point to point. A group of one sends nothing.

    >>> sent_bytes("all_reduce", 140e9, 8)
    245000000000.0
    """
    if group_size < 1:
        raise ValueError(f"group_size={group_size}: a group has at least one rank")
    if collective not in COLLECTIVES:
        raise ValueError(f"collective={collective!r}; valid: {', '.join(COLLECTIVES)}")
    if collective == "send":
        return float(message_bytes)
    passes = 2 if collective == "all_reduce" else 1
    return passes * (group_size - 1) * message_bytes / group_size
