"""How parameters are grouped, padded and cut: the rules that both the plan and the engine call.

Because the engine calls these functions and the plan calls the same ones, the bytes that the plan predicts
and the bytes that a run holds cannot drift apart by a copied rule.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

ROOT = ""
"""Name of the unit that holds what lies outside every block."""


@dataclass(frozen=True)
class Unit:
    """Parameters that are flattened into one buffer, gathered together and freed together."""

    name: str
    members: tuple[str, ...]


def padded_numel(numel: int, world: int) -> int:
    """The smallest multiple of ``world`` that holds ``numel`` elements, so that all shards are equal.

    >>> padded_numel(10, 4)
    12
    """
    return -(-numel // world) * world


def shard_numel(numel: int, world: int) -> int:
    """Elements of one rank's shard of a buffer of ``numel`` elements, padding included."""
    return padded_numel(numel, world) // world


def shard_range(numel: int, world: int, rank: int) -> tuple[int, int]:
    """Start and stop of a rank's shard in the padded buffer; the last shards may lie in the padding.

    >>> [shard_range(10, 4, rank) for rank in range(4)]
    [(0, 3), (3, 6), (6, 9), (9, 12)]
    """
    if not 0 <= rank < world:
        raise ValueError(f"rank={rank}: a group of {world} has ranks 0 to {world - 1}")
    size = shard_numel(numel, world)
    return rank * size, (rank + 1) * size


def group_units(names: Iterable[str], blocks: Sequence[str]) -> tuple[Unit, ...]:
    """Group parameter names into units: the root first, then one unit a block, in the order of ``blocks``.

    ``blocks`` are module names such as ``layers.0``; a name belongs to the block that is its prefix. What
    lies outside every block (embeddings, final norm, head) is the root unit, which stays gathered while any
    block runs. A unit without members is left out.

    >>> units = group_units(["embed.weight", "layers.0.w", "head.weight"], ["layers.0"])
    >>> [(unit.name, unit.members) for unit in units]
    [('', ('embed.weight', 'head.weight')), ('layers.0', ('layers.0.w',))]
    """
    members: dict[str, list[str]] = {ROOT: [], **{block: [] for block in blocks}}
    for name in names:
        members[_block_of(name, members)].append(name)
    return tuple(Unit(block, tuple(found)) for block, found in members.items() if found)


def _block_of(name: str, blocks: dict[str, list[str]]) -> str:
    prefix = name
    while "." in prefix:
        prefix = prefix.rpartition(".")[0]
        if prefix in blocks:
            return prefix
    return ROOT


def buckets(sizes_bytes: Sequence[int], limit_bytes: int) -> tuple[tuple[int, ...], ...]:
    """Fill buckets of at most ``limit_bytes`` with the tensors' indices, last tensor first.

    Gradients become ready roughly in reverse order of the forward pass, so the last tensors fill the first
    bucket. A tensor larger than the limit has a bucket of its own.

    >>> buckets([4, 4, 4, 20, 2], 8)
    ((4,), (3,), (2, 1), (0,))
    """
    found: list[tuple[int, ...]] = []
    current: list[int] = []
    filled = 0
    for index in range(len(sizes_bytes) - 1, -1, -1):
        size = sizes_bytes[index]
        if current and filled + size > limit_bytes:
            found.append(tuple(current))
            current, filled = [], 0
        current.append(index)
        filled += size
    if current:
        found.append(tuple(current))
    return tuple(found)
