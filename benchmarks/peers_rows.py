"""Who stands beside whom: rows of contenders that do the same job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One contender of a row. ``function`` is module.function of peers_*.py; ``world`` None is the row's.

    ``short``: it stands in every row of its kind, as ours or as the peer that was best so far; the others
    stand in the row of the fewest ranks alone, with the small model in fp32.
    """

    name: str
    function: str
    options: dict[str, Any] = field(default_factory=dict)
    world: int | None = None
    threads: int = 1
    environment: str = ".venv"
    short: bool = False

    @property
    def ours(self) -> bool:
        return self.function.startswith("pdtlib")

    @property
    def floor(self) -> bool:
        return self.world == 1


@dataclass(frozen=True, kw_only=True)
class Row:
    """Contenders that do the same job with the same memory promise, on ``world`` ranks."""

    name: str
    world: int
    model: str
    precision: str
    entries: tuple[Entry, ...]


ONE_THREAD = Entry(name="one process, 1 thread", function="torch.one", world=1)
TWO_THREADS = Entry(name="one process, 2 threads", function="torch.one", world=1, threads=2, short=True)
ONE_EACH = {"micro_batch": 1}  # a micro-batch is one sequence


def pdtlib(name: str, *, short: bool = True, **tables: Any) -> Entry:
    return Entry(name=f"pdtlib {name}", function="pdtlib.run", options=tables, short=short)


def deepspeed(name: str, function: str, **options: Any) -> Entry:
    return Entry(
        name=f"DeepSpeed {name}",
        function=f"deepspeed.{function}",
        options=options,
        environment=".venv-targets",
    )


def torch_entry(name: str, function: str, *, short: bool = False, **options: Any) -> Entry:
    return Entry(name=f"torch {name}", function=f"torch{function}", options=options, short=short)


def _pdtlib_pipeline(schedule: str, world: int, *, chunks: int = 1, short: bool = False) -> Entry:
    layout = {"pp": world, "schedule": schedule, "vpp": chunks}
    return pdtlib(f"PP {schedule}", short=short, parallel=layout, train=ONE_EACH)


def _torch_pipeline(schedule: str, *, short: bool = False) -> Entry:
    return torch_entry(f"PP {schedule}", "_pipeline.run", schedule=schedule, short=short)


def entries_of(kind: str, world: int) -> tuple[Entry, ...]:
    """The contenders of one kind of row."""
    if kind == "ddp":
        return (
            pdtlib("DDP"),
            torch_entry("DDP", ".ddp"),
            torch_entry("DDP, bucket view", ".ddp", gradient_as_bucket_view=True, keep=True, short=True),
            torch_entry("DDP, static graph", ".ddp", gradient_as_bucket_view=True, static_graph=True),
        )
    if kind == "zero1":
        return (
            pdtlib("ZeRO-1", train={"zero_stage": 1}),
            torch_entry("ZeroRedundancyOptimizer", ".zero_redundancy", short=True),
            deepspeed("ZeRO-1", "zero", stage=1),
        )
    if kind == "zero2":
        return (
            pdtlib("ZeRO-2", train={"zero_stage": 2}),
            torch_entry("FSDP2, no reshard", ".fsdp2", reshard=False, short=True),
            torch_entry("FSDP1, SHARD_GRAD_OP", ".fsdp1", strategy="SHARD_GRAD_OP"),
            deepspeed("ZeRO-2", "zero", stage=2),
        )
    if kind == "zero3":
        return (
            pdtlib("ZeRO-3", train={"zero_stage": 3}),
            torch_entry("FSDP2, reshard", ".fsdp2", reshard=True, short=True),
            torch_entry("FSDP1, FULL_SHARD", ".fsdp1", strategy="FULL_SHARD"),
            deepspeed("ZeRO-3", "zero", stage=3),
        )
    if kind == "tp":
        tp = {"tp": world}
        return (
            pdtlib("TP", parallel=tp),
            pdtlib("TP + SP", short=False, parallel=tp, train={"sequence_parallel": True}),
            torch_entry("DTensor TP", ".dtensor_tp", sequence=False, loss_parallel=False),
            torch_entry("DTensor TP, loss parallel", ".dtensor_tp", sequence=False, short=True),
            torch_entry("DTensor TP + SP, loss parallel", ".dtensor_tp", sequence=True),
        )
    if kind == "pp":
        found = [
            _pdtlib_pipeline("1f1b", world, short=True),
            _pdtlib_pipeline("gpipe", world),
            _torch_pipeline("1f1b", short=True),
            _torch_pipeline("gpipe"),
            deepspeed("PP", "pipeline"),
        ]
        if world <= 4:  # two chunks a rank, of 8 layers
            found += [_pdtlib_pipeline("interleaved", world, chunks=2), _torch_pipeline("interleaved")]
        return tuple(found)
    if kind == "zero bubble":
        return (
            _pdtlib_pipeline("zb-h1", world),
            _pdtlib_pipeline("zb-v", world, chunks=2),
            _torch_pipeline("interleaved zero bubble"),
            _torch_pipeline("zb-v"),
            _torch_pipeline("dualpipe-v"),
        )
    if kind == "2d":
        layout = {"dp": world // 2, "tp": 2}
        return (
            pdtlib("ZeRO-3 × TP + SP", parallel=layout, train={"zero_stage": 3, "sequence_parallel": True}),
            pdtlib(
                "ZeRO-2 × TP + SP",
                short=False,
                parallel=layout,
                train={"zero_stage": 2, "sequence_parallel": True},
            ),
            torch_entry("FSDP2 × TP + SP, reshard", ".fsdp2_tp", tp=2, reshard=True, short=True),
            torch_entry("FSDP2 × TP + SP, no reshard", ".fsdp2_tp", tp=2, reshard=False),
        )
    if kind == "3d":
        layout = {"dp": world // 4, "pp": 2, "tp": 2, "schedule": "1f1b"}
        # FSDP2 shards over what replicas there are and sends gradients once a step: so does ZeRO-1.
        train = {"sequence_parallel": True, "zero_stage": int(world > 4), **ONE_EACH}
        return (
            pdtlib("1F1B × TP + SP", parallel=layout, train=train),
            torch_entry("1F1B × DTensor TP + SP", "_pipeline.three", tp=2, pp=2, short=True),
        )
    raise ValueError(f"kind={kind!r}: valid are {', '.join(KINDS)}")


KINDS = ("ddp", "zero1", "zero2", "zero3", "tp", "pp", "zero bubble", "2d", "3d")
FEWEST_RANKS = {"2d": 4, "3d": 4}  # others: 2
FULL = (
    # (kinds, ranks, model, precision), the most telling first: a run that is short of time ends early
    (("ddp", "zero1", "zero2", "zero3", "tp", "pp", "zero bubble"), 2, "12M", "fp32"),
    (("2d", "3d", "ddp", "zero2", "zero3", "tp", "pp"), 4, "12M", "fp32"),
    (("zero3",), 2, "12M", "bf16"),
    (("3d", "zero3"), 8, "12M", "fp32"),
    (("zero3",), 2, "50M", "fp32"),
    (("zero2", "tp"), 2, "12M", "bf16"),
    (("tp",), 2, "50M", "fp32"),
    (("2d", "zero2", "tp", "pp"), 8, "12M", "fp32"),
)
SHORT = (
    (("ddp", "zero2", "zero3", "tp", "pp"), 2, "12M", "fp32"),
    (("3d",), 4, "12M", "fp32"),
)


def rows(*, short: bool, model: str = "") -> Iterator[Row]:
    """All rows of the report, or the short form's; ``model`` replaces each row's."""
    for kinds, world, its_model, precision in SHORT if short else FULL:
        for kind in kinds:
            yield row(kind, world=world, model=model or its_model, precision=precision, short=short)


def row(kind: str, *, world: int, model: str, precision: str = "fp32", short: bool = False) -> Row:
    """One row: the floors, then the contenders; the floor of one thread stands in rows of DDP alone."""
    floors = (TWO_THREADS, ONE_THREAD) if kind == "ddp" else (TWO_THREADS,)
    entries = (*floors, *entries_of(kind, world))
    few = short or (world, model, precision) != (FEWEST_RANKS.get(kind, 2), "12M", "fp32")
    return Row(
        name=f"{kind}, {world} ranks, {precision}, {model}",
        world=world,
        model=model,
        precision=precision,
        entries=tuple(entry for entry in entries if entry.short or not few),
    )
