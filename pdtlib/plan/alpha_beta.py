"""Collectives in the alpha-beta model: ring, tree and hierarchical, on one link or on two kinds.

A step of a message costs a latency, alpha, and its bytes over the link's rate, 1 / beta. A ring sends least
but takes n-1 steps a pass; a tree takes log2(n); a hierarchy does the large part inside nodes, so that each
network card carries the share of one GPU alone. What a library achieves is in :mod:`pdtlib.plan.time`; these
are the forms themselves.
"""

import math
from dataclasses import dataclass

from pdtlib.plan.overlap import collective_s


@dataclass(frozen=True)
class Link:
    """One direction of a link: ``alpha_s`` a step, ``bytes_per_s`` behind it."""

    alpha_s: float
    bytes_per_s: float


def ring_s(collective: str, message_bytes: float, group_size: int, *, link: Link) -> float:
    """n-1 steps a pass, each with 1/n of the message (Patarasuk and Yuan 2009); an all-reduce has two passes.

    >>> round(ring_s("all_reduce", 1e9, 8, link=Link(1e-5, 25e9)), 5)
    0.07014
    """
    return collective_s(
        collective, message_bytes, group_size, bytes_per_s=link.bytes_per_s, latency_s=link.alpha_s
    )


def tree_s(message_bytes: float, group_size: int, *, link: Link) -> float:
    """An all-reduce up and down two binary trees, each with half of the message (Sanders et al. 2009).

    2 log2(n) latencies, and the message once up and once down: a little more bytes than a ring, far fewer
    steps.

    >>> round(tree_s(1e9, 8, link=Link(1e-5, 25e9)), 5)
    0.08006
    """
    if group_size < 1:
        raise ValueError(f"group_size={group_size}: a group has at least one rank")
    if group_size == 1:
        return 0.0
    depth = math.ceil(math.log2(group_size))
    return 2 * depth * link.alpha_s + 2 * message_bytes / link.bytes_per_s


def hierarchical_s(message_bytes: float, *, nodes: int, per_node: int, inside: Link, between: Link) -> float:
    """An all-reduce in three parts: reduce-scatter inside nodes, all-reduce of shares between, all-gather.

    Every GPU of a node sends its share, 1/``per_node`` of the message, over its own network card.

    >>> inside, between = Link(2e-6, 300e9), Link(1e-5, 25e9)
    >>> flat = ring_s("all_reduce", 1e9, 64, link=between)
    >>> round(flat, 4), round(hierarchical_s(1e9, nodes=8, per_node=8, inside=inside, between=between), 4)
    (0.08, 0.0148)
    """
    share = message_bytes / per_node
    return (
        ring_s("reduce_scatter", message_bytes, per_node, link=inside)
        + ring_s("all_reduce", share, nodes, link=between)
        + ring_s("all_gather", message_bytes, per_node, link=inside)
    )


def crossover_bytes(group_size: int, *, link: Link) -> float:
    """The message above which a ring all-reduce beats the tree, 0 where it always does.

    Both are equal where the ring's additional steps cost what the tree's additional bytes do.

    >>> link = Link(1e-5, 25e9)
    >>> size = crossover_bytes(64, link=link)
    >>> abs(ring_s("all_reduce", size, 64, link=link) - tree_s(size, 64, link=link)) < 1e-12
    True
    """
    if group_size < 2:
        return 0.0
    steps = group_size - 1 - math.ceil(math.log2(group_size))
    return max(0.0, steps * link.alpha_s * link.bytes_per_s * group_size)
