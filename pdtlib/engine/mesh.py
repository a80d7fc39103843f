"""Ranks arranged along named axes: the mesh is built once and passed on, nothing is global.

``tp`` is the innermost axis, so that the ranks of a tensor-parallel group, which talk most, are neighbours.
In the article's order ``dp`` is the outermost: with dp=16, pp=8, tp=8, rank 0 has the tp group 0–7, the pp
group 0, 8, …, 56 and the dp group 0, 64, …, 960. In Megatron's order ``pp`` is (:mod:`pdtlib.plan.ranks`).
"""

import itertools
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from pdtlib.observe.ledger import Ledger
from pdtlib.plan.ranks import ARTICLE_ORDER, check_order

AXES = ("dp", "pp", "cp", "tp", "ep")
"""The axes along which a rank has a group. ``ep`` takes its ranks from dp × cp and adds none."""


class Group:
    """The ranks that this rank meets along one axis, and the ledger in which their messages are counted.

    ``rank`` is the position within the group, ``ranks`` are the global ranks. ``timeline`` may be set to an
    :class:`pdtlib.observe.trace.Timeline` that then receives messages and waits.
    """

    def __init__(
        self,
        axis: str,
        process_group: dist.ProcessGroup | None,
        ranks: tuple[int, ...],
        rank: int,
        *,
        ledger: Ledger | None = None,
    ) -> None:
        self.axis, self.ranks, self.rank, self.size = axis, ranks, rank, len(ranks)
        # torch.distributed alone keeps it alive, so that shutdown() ends its threads (see there).
        self._process_group = (lambda: None) if process_group is None else weakref.ref(process_group)
        self.backend = dist.get_backend(process_group) if process_group is not None else "none"
        self.ledger = Ledger() if ledger is None else ledger
        self.timeline: Any = None
        self.tags: Iterator[int] = itertools.count()  # numbers messages between pairs, alike on every rank
        self.calls = 0  # collectives begun so far, the same on every rank unless one is late
        self.call = ""  # the newest of them
        self.waits: tuple[str, float] | None = None  # what this rank waits for, and since when (monotonic)

    @property
    def process_group(self) -> dist.ProcessGroup | None:
        """None for a group of one, which needs no torch.distributed, and after it is shut down."""
        return self._process_group()

    @classmethod
    def alone(cls, axis: str = "dp") -> "Group":
        """A group of one rank, for a run without torch.distributed."""
        return cls(axis, None, (0,), 0)

    def isend(self, x: torch.Tensor, to: int, tag: int = 0) -> dist.Work:
        """Start to send ``x`` to the group's rank ``to``.

        ``dist.isend`` does the same after a dozen calls, which look up groups and ranks that are known here.
        """
        process_group = self._process_group()
        assert process_group is not None
        return process_group.send([x], to, tag)

    def irecv(self, out: torch.Tensor, source: int, tag: int = 0) -> dist.Work:
        """Start to receive into ``out`` what the group's rank ``source`` sends."""
        process_group = self._process_group()
        assert process_group is not None
        return process_group.recv([out], source, tag)


class Mesh:
    """Named axes over a :class:`torch.distributed.device_mesh.DeviceMesh`; all groups share one ledger.

    ``data`` are the ranks that have the same parameters and other tokens: dp × cp, counted as axis ``dp``.
    ``group("ep")`` are ``ep`` neighbours among them, which share out the experts, and ``expert_data`` those
    that hold the same experts.
    """

    def __init__(self, device_mesh: DeviceMesh | None, device: torch.device, *, ep: int = 1) -> None:
        self.device = device
        self.ledger = Ledger()
        self._groups = {axis: self._along(axis, device_mesh) for axis in AXES if axis != "ep"}
        self.data = self.expert_data = self._groups["dp"]
        this = dist.get_rank() if dist.is_initialized() else 0
        self._groups["ep"] = Group("ep", None, (this,), 0, ledger=self.ledger)
        if device_mesh is None:
            return
        lines = _data_ranks(device_mesh)
        if self._groups["cp"].size > 1:
            self.data = self.expert_data = self._one_of("dp", lines)
        if ep > 1:
            together = [ranks[at : at + ep] for ranks in lines for at in range(0, len(ranks), ep)]
            alike = [ranks[at::ep] for ranks in lines for at in range(ep)]
            self._groups["ep"], self.expert_data = self._one_of("ep", together), self._one_of("dp", alike)

    def _along(self, axis: str, device_mesh: DeviceMesh | None) -> Group:
        if device_mesh is None:
            return Group(axis, None, (0,), 0, ledger=self.ledger)
        process_group = device_mesh.get_group(axis)
        ranks = tuple(dist.get_process_group_ranks(process_group))
        return Group(axis, process_group, ranks, ranks.index(dist.get_rank()), ledger=self.ledger)

    def _one_of(self, axis: str, lines: Sequence[Sequence[int]]) -> Group:
        """This rank's group among ``lines``; every rank makes every group, in one order."""
        rank = dist.get_rank()
        for ranks in lines:
            process_group = dist.new_group(list(ranks))
            if rank in ranks:
                mine = Group(axis, process_group, tuple(ranks), ranks.index(rank), ledger=self.ledger)
        return mine

    def group(self, axis: str) -> Group:
        """The group of this rank along ``axis``. Raises ValueError for an axis that does not exist."""
        if axis not in self._groups:
            raise ValueError(f"axis={axis!r}: the mesh has {', '.join(AXES)}")
        return self._groups[axis]

    @property
    def place(self) -> dict[str, int]:
        """This rank's coordinates: axis -> position."""
        return {axis: group.rank for axis, group in self._groups.items() if axis != "ep"}

    def groups(self) -> list[Group]:
        """Every group of this rank with more than one rank, once."""
        found = [*self._groups.values(), self.data, self.expert_data]
        return list({id(group): group for group in found if group.size > 1}.values())

    def set_timeline(self, timeline: Any) -> None:
        """Let every group report to ``timeline``; None stops it."""
        for group in self.groups():
            group.timeline = timeline


def _data_ranks(device_mesh: DeviceMesh) -> list[list[int]]:
    """Every set of ranks that differ along dp and cp alone, dp running slower."""
    names = device_mesh.mesh_dim_names
    assert names is not None
    rest = [name for name in names if name not in ("dp", "cp")]
    ordered = device_mesh.mesh.permute([names.index(name) for name in (*rest, "dp", "cp")])
    return ordered.reshape(-1, ordered.shape[len(rest) :].numel()).tolist()


def build_mesh(
    parallel: Any = None, *, device_type: str = "cpu", order: Sequence[str] = ARTICLE_ORDER
) -> Mesh:
    """Arrange all ranks along dp, pp, cp and tp.

    ``parallel`` is a :class:`pdtlib.plan.job.Parallel` or a mapping with the degrees; what is left out is 1.
    By default all ranks lie along dp. ``order`` names the axes, the one whose ranks are neighbours first.
    Raises ValueError when the degrees do not multiply to the number of ranks. Without torch.distributed the
    mesh has one rank.
    """
    check_order(order)
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    if parallel is None:
        parallel = {"dp": world_size}
    degrees = {axis: _degree(parallel, axis) for axis in reversed(order)}
    product = torch.Size(degrees.values()).numel()
    if product != world_size:
        sizes = " × ".join(f"{axis}={degrees[axis]}" for axis in AXES if axis in degrees)
        raise ValueError(f"parallel: {sizes} = {product}, but {world_size} ranks run; start {product} ranks")
    device = torch.device(device_type)
    if device_type == "cuda":
        device = torch.device("cuda", torch.cuda.current_device())
    if not dist.is_initialized():
        return Mesh(None, device)
    device_mesh = init_device_mesh(device_type, tuple(degrees.values()), mesh_dim_names=tuple(degrees))
    return Mesh(device_mesh, device, ep=_degree(parallel, "ep"))


def _degree(parallel: Any, axis: str) -> int:
    if isinstance(parallel, Mapping):
        return int(parallel.get(axis, 1))
    return int(getattr(parallel, axis, 1))
