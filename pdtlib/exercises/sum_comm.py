"""A view of the simulator's network that sums lists of numbers: the all-reduce of small exercises."""

from typing import Any

from pdtlib.exercises.simulator import AllReduce, Fabric, Message


class SumComm:
    """``rank``, ``world_size``, ``all_reduce``. What a ring would send is counted as sent."""

    def __init__(self, rank: int, fabric: Fabric) -> None:
        self.rank = rank
        self.world_size = fabric.world_size
        self._fabric = fabric

    def all_reduce(self, values: list[float]) -> AllReduce:
        """``total = yield comm.all_reduce(values)`` waits for the element-wise sum of every rank's list."""
        self._check(values)
        right = (self.rank + 1) % self.world_size
        if self.world_size > 1:
            self._fabric.sent[self.rank].append(Message(right, len(values)))
        return AllReduce([float(value) for value in values], "comm.all_reduce(values)")

    def _check(self, values: Any) -> None:
        if not isinstance(values, list | tuple):
            raise self._fabric.refuse(
                TypeError(f"all_reduce takes a list of numbers, got a {type(values).__name__}")
            )
        for value in values:
            if type(value) not in (int, float):
                raise self._fabric.refuse(
                    TypeError(f"all_reduce takes a list of numbers; one of them is a {type(value).__name__}")
                )
