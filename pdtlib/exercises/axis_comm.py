"""A view of the simulator's network with named groups: sums along one axis of a mesh of ranks."""

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from pdtlib.exercises.simulator import Comm, Fabric


class AxisComm:
    """``all_reduce`` and ``reduce_scatter`` of lists along an axis, waited for with ``yield from``.

    ``groups`` gives, for each axis, the ranks of this rank's group in the axis's order. ``calls`` notes every
    call as (axis, collective, number of values), for graders.
    """

    def __init__(self, rank: int, fabric: Fabric, groups: Mapping[str, Sequence[int]]) -> None:
        self.rank = rank
        self.calls: list[tuple[str, str, int]] = []
        self._groups = {axis: tuple(group) for axis, group in groups.items()}
        self._comm, self._fabric = Comm(rank, fabric), fabric

    def position(self, axis: str) -> int:
        """This rank's place in its group along the axis."""
        return self._group(axis).index(self.rank)

    def size(self, axis: str) -> int:
        """The number of ranks of that group."""
        return len(self._group(axis))

    def all_reduce(self, values: Sequence[float], axis: str) -> Generator[Any, Any, list[float]]:
        """``total = yield from comm.all_reduce(values, axis)``: the sum over the group, on every rank."""
        return self._sum(values, axis, "all_reduce")

    def reduce_scatter(self, values: Sequence[float], axis: str) -> Generator[Any, Any, list[float]]:
        """``shard = yield from comm.reduce_scatter(values, axis)``: this rank's piece of the sum.

        The list is cut into as many equal pieces as the group has ranks.
        """
        return self._sum(values, axis, "reduce_scatter")

    def _group(self, axis: str) -> tuple[int, ...]:
        if axis not in self._groups:
            raise self._fabric.refuse(ValueError(f"axis={axis!r}; valid: {', '.join(self._groups)}"))
        return self._groups[axis]

    def _sum(self, values: Sequence[float], axis: str, kind: str) -> Generator[Any, Any, list[float]]:
        group = self._group(axis)
        if not isinstance(values, list | tuple):
            raise self._fabric.refuse(TypeError(f"{kind} takes a list of numbers, got {values!r}"))
        if kind == "reduce_scatter" and len(values) % len(group):
            message = f"reduce_scatter cannot cut {len(values)} numbers into {len(group)} equal pieces"
            raise self._fabric.refuse(ValueError(message))
        self.calls.append((axis, kind, len(values)))
        for peer in group:
            if peer != self.rank:
                self._comm.send(values, to=peer)
        found = []
        for peer in group:
            found.append(list(values) if peer == self.rank else (yield self._comm.recv(source=peer)))
            if len(found[-1]) != len(values):
                raise self._fabric.refuse(
                    ValueError(f"{kind} over {axis}: ranks bring {len(values)} and {len(found[-1])} numbers")
                )
        total = [sum(column) for column in zip(*found, strict=True)]
        if kind == "all_reduce":
            return total
        piece = len(total) // len(group)
        return total[self.position(axis) * piece : (self.position(axis) + 1) * piece]
