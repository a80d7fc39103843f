"""Bytes that collectives move, under ring algorithms.

``message_bytes`` is always the whole logical tensor: the input of a reduce-scatter, the output of an
all-gather, what every rank holds in an all-reduce. ``sent`` is what one rank puts on its link.
"""

from dataclasses import dataclass

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


def ring_steps(collective: str, group_size: int) -> int:
    """Steps of a ring algorithm one after the other, each of which costs one latency.

    >>> ring_steps("all_reduce", 8), ring_steps("all_gather", 8), ring_steps("send", 2)
    (14, 7, 1)
    """
    if collective not in COLLECTIVES:
        raise ValueError(f"collective={collective!r}; valid: {', '.join(COLLECTIVES)}")
    if collective == "send":
        return 1
    return (2 if collective == "all_reduce" else 1) * (group_size - 1)


@dataclass(frozen=True)
class Message:
    """A row of the communication ledger: ``count`` equal collectives of one step.

    ``message_bytes`` is one message, ``sent_bytes_per_rank`` what a rank sends in all ``count`` of them.
    """

    axis: str
    collective: str
    phase: str
    count: int
    message_bytes: float
    group_size: int

    @property
    def sent_bytes_per_rank(self) -> float:
        return self.count * sent_bytes(self.collective, self.message_bytes, self.group_size)

    def row(self) -> dict[str, str | float]:
        """The row as the engine's ledger and ``pdt predict`` print it."""
        return {
            "axis": self.axis,
            "collective": self.collective,
            "phase": self.phase,
            "count": self.count,
            "message_bytes": self.message_bytes,
            "sent_bytes_per_rank": self.sent_bytes_per_rank,
        }


def zero_messages(
    num_params: float,
    *,
    dp: int,
    stage: int,
    param_bytes: int = 2,
    grad_bytes: int = 2,
    micro_batches: int = 1,
    reshard_after_forward: bool = True,
) -> tuple[Message, ...]:
    """What data parallelism and ZeRO send in one step, as if the model were one buffer (ZeRO, section 7).

    Stages 0 and 1 reduce gradients once a step. From stage 2 on a rank keeps only its share of them, so they
    are reduced after every micro-batch, and stage 3 also gathers parameters in every one: DeepSpeed's rule
    and ours.

    >>> def gigabytes(stage, micro_batches):
    ...     rows = zero_messages(70e9, dp=8, stage=stage, micro_batches=micro_batches)
    ...     return sum(row.sent_bytes_per_rank for row in rows) / 1e9
    >>> [gigabytes(stage, 1) for stage in range(4)]
    [245.0, 245.0, 245.0, 367.5]
    >>> [gigabytes(stage, 8) for stage in range(4)]
    [245.0, 245.0, 1102.5, 2940.0]
    """
    if stage not in (0, 1, 2, 3):
        raise ValueError(f"stage={stage}; valid: 0 (data parallelism), 1, 2, 3")
    params, grads = num_params * param_bytes, num_params * grad_bytes
    if stage == 0:
        return (Message("dp", "all_reduce", "grads", 1, grads, dp),)
    reductions = 1 if stage == 1 else micro_batches
    reduce = Message("dp", "reduce_scatter", "grads", reductions, grads, dp)
    if stage < 3:
        return (reduce, Message("dp", "all_gather", "params", 1, params, dp))
    gather = Message("dp", "all_gather", "forward", micro_batches, params, dp)
    if not reshard_after_forward:
        return (gather, reduce)
    return (gather, Message("dp", "all_gather", "backward", micro_batches, params, dp), reduce)
