"""Time of collectives in the alpha-beta model: latency of their steps, bytes over the slowest link.

A ring of n ranks takes n-1 steps a pass. Inside a node the library switches protocols with the message's
size: one with little latency and little bandwidth, one with most of both, one with all the bandwidth
(NCCL's LL, LL128 and Simple). Between nodes, all ranks of the group that share a node bring their network
cards, and the passes cross each node boundary once; long groups go up and down a tree instead when that is
faster.
"""

import math
from collections.abc import Sequence

from pdtlib.plan.comm import COLLECTIVES, ring_steps, sent_bytes
from pdtlib.plan.spec import CollectiveRate
from pdtlib.plan.time.machine import Fabric


def collective_s(
    collective: str, message_bytes: float, group_size: int, *, fabric: Fabric, ranks_per_node: int
) -> float:
    """Seconds of one collective over ``group_size`` ranks, ``ranks_per_node`` of them on each node."""
    if collective not in COLLECTIVES:
        raise ValueError(f"collective={collective!r}; valid: {', '.join(COLLECTIVES)}")
    if group_size == 1 or message_bytes == 0:
        return 0.0
    together = max(1, min(ranks_per_node, group_size))
    if group_size <= together and fabric.measured:
        return measured_s(collective, message_bytes, group_size, fabric.measured)
    if group_size <= together:
        return _inside(collective, message_bytes, group_size, fabric)
    return _across(collective, message_bytes, group_size, together, fabric)


def measured_s(
    collective: str, message_bytes: float, group_size: int, rates: Sequence[CollectiveRate]
) -> float:
    """Seconds by what was timed on the nearest number of ranks, the larger of two that are as near.

    The latency grows with the steps of a ring, the bytes are those that a rank sends. A collective that was
    not timed takes the all-reduce's rates.
    """
    known = [rate for rate in rates if rate.collective == collective]
    known = known or [rate for rate in rates if rate.collective == "all_reduce"] or list(rates)
    rate = min(known, key=lambda one: (abs(math.log(one.ranks / group_size)), -one.ranks))
    steps = ring_steps(collective, group_size) / ring_steps(rate.collective, rate.ranks)
    return rate.start_s * steps + sent_bytes(collective, message_bytes, group_size) / rate.bytes_per_s


def _inside(collective: str, message_bytes: float, group_size: int, fabric: Fabric) -> float:
    if collective == "send":
        return fabric.intra_start_s / 2 + message_bytes / fabric.pair_bytes_per_s
    latency = fabric.intra_start_s + ring_steps(collective, group_size) * fabric.intra_step_s
    sent = sent_bytes(collective, message_bytes, group_size)
    if collective == "all_reduce" and group_size > 4:
        sent /= fabric.switch_gain
    rate = fabric.pair_bytes_per_s if group_size == 2 else fabric.intra_bytes_per_s
    return min(factor * latency + sent / (share * rate) for factor, share in fabric.protocols)


def _across(collective: str, message_bytes: float, group_size: int, together: int, fabric: Fabric) -> float:
    if collective == "send":
        return fabric.inter_start_s + message_bytes / fabric.inter_bytes_per_s
    nodes = group_size / together
    sent = sent_bytes(collective, message_bytes, group_size)
    rate = min(together * fabric.inter_bytes_per_s, fabric.intra_bytes_per_s)
    if collective == "all_to_all":
        outside = message_bytes * (1 - together / group_size)
        return (
            fabric.inter_start_s + outside / fabric.inter_bytes_per_s + group_size * fabric.inter_step_s / 8
        )
    passes = 2 if collective == "all_reduce" else 1
    ring = passes * nodes * fabric.inter_step_s
    tree = 2 * passes * math.ceil(math.log2(nodes)) * fabric.inter_step_s
    return fabric.inter_start_s + min(ring, tree) + sent / rate
