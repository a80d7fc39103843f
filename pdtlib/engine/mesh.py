"""Ranks arranged along named axes: the mesh is built once and passed on, nothing is global.

``pp`` is the outermost axis after ``dp`` and ``tp`` the innermost, so that the ranks of a tensor-parallel
group, which talk most, are neighbours. With dp=16, pp=8, tp=8, rank 0 has the tp group 0–7, the pp group 0,
8, …, 56 and the dp group 0, 64, …, 960.
"""

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from pdtlib.observe.ledger import Ledger

AXES = ("dp", "pp", "cp", "tp")


@dataclass(eq=False)
class Group:
    """The ranks that this rank meets along one axis, and the ledger in which their messages are counted.

    ``rank`` is the position within the group, ``ranks`` are the global ranks. ``process_group`` is None for a
    group of one, which needs no torch.distributed. ``timeline`` may be set to an
    :class:`pdtlib.observe.trace.Timeline` that then receives messages and waits.
    """

    axis: str
    process_group: dist.ProcessGroup | None
    ranks: tuple[int, ...]
    rank: int
    ledger: Ledger = field(default_factory=Ledger)
    timeline: Any = None

    def __post_init__(self) -> None:
        self.size = len(self.ranks)
        self.backend = dist.get_backend(self.process_group) if self.process_group is not None else "none"
        self.tags: Iterator[int] = itertools.count()  # numbers messages between pairs, alike on every rank

    @classmethod
    def alone(cls, axis: str = "dp") -> "Group":
        """A group of one rank, for a run without torch.distributed."""
        return cls(axis, None, (0,), 0)

    @contextmanager
    def waiting(self, name: str) -> Iterator[None]:
        """Mark the body as exposed communication on the timeline, if there is one."""
        if self.timeline is None:
            yield
        else:
            with self.timeline.span("wait", name):
                yield


class Mesh:
    """Named axes over a :class:`torch.distributed.device_mesh.DeviceMesh`; all groups share one ledger."""

    def __init__(self, device_mesh: DeviceMesh | None, device: torch.device) -> None:
        self.device_mesh = device_mesh
        self.device = device
        self.ledger = Ledger()
        self._groups = {axis: self._build(axis) for axis in AXES}
        self._data = self._groups["dp"] if self._groups["cp"].size == 1 else self._build_data()

    def _build(self, axis: str) -> Group:
        if self.device_mesh is None:
            return Group(axis, None, (0,), 0, ledger=self.ledger)
        process_group = self.device_mesh.get_group(axis)
        ranks = tuple(dist.get_process_group_ranks(process_group))
        return Group(axis, process_group, ranks, ranks.index(dist.get_rank()), ledger=self.ledger)

    def _build_data(self) -> Group:
        assert self.device_mesh is not None
        rank = dist.get_rank()
        by_axis = self.device_mesh.mesh.permute(1, 3, 0, 2)  # [pp, tp, dp, cp]
        for ranks in by_axis.flatten(2).flatten(0, 1).tolist():
            process_group = dist.new_group(ranks)  # every rank makes every group, in one order
            if rank in ranks:
                mine = Group("dp", process_group, tuple(ranks), ranks.index(rank), ledger=self.ledger)
        return mine

    def group(self, axis: str) -> Group:
        """The group of this rank along ``axis``. Raises ValueError for an axis that does not exist."""
        if axis not in self._groups:
            raise ValueError(f"axis={axis!r}: the mesh has {', '.join(AXES)}")
        return self._groups[axis]

    @property
    def data(self) -> Group:
        """The ranks that have the same parameters and other tokens: dp × cp, counted as axis ``dp``."""
        return self._data

    def set_timeline(self, timeline: Any) -> None:
        """Let every group report to ``timeline``; None stops it."""
        for group in (*self._groups.values(), self._data):
            group.timeline = timeline


def build_mesh(parallel: Any = None, *, device_type: str = "cpu") -> Mesh:
    """Arrange all ranks along dp, pp, cp and tp.

    ``parallel`` is a :class:`pdtlib.plan.job.Parallel` or a mapping with the degrees; what is left out is 1.
    By default all ranks lie along dp. Raises ValueError when the degrees do not multiply to the number of
    ranks. Without torch.distributed the mesh has one rank.
    """
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    if parallel is None:
        parallel = {"dp": world_size}
    degrees = [_degree(parallel, axis) for axis in AXES]
    product = torch.Size(degrees).numel()
    if product != world_size:
        sizes = " × ".join(f"{axis}={degree}" for axis, degree in zip(AXES, degrees, strict=True))
        raise ValueError(f"parallel: {sizes} = {product}, but {world_size} ranks run; start {product} ranks")
    device = torch.device(device_type)
    if device_type == "cuda":
        device = torch.device("cuda", torch.cuda.current_device())
    if not dist.is_initialized():
        return Mesh(None, device)
    return Mesh(init_device_mesh(device_type, tuple(degrees), mesh_dim_names=AXES), device)


def _degree(parallel: Any, axis: str) -> int:
    if isinstance(parallel, Mapping):
        return int(parallel.get(axis, 1))
    return int(getattr(parallel, axis, 1))
