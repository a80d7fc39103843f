"""Who stands beside whom: rows of contenders that do the same job."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One contender of a row. ``function`` is module.function of peers_*.py; ``world`` None is the row's."""

    name: str
    function: str
    options: dict[str, Any] = field(default_factory=dict)
    world: int | None = None
    threads: int = 1
    environment: str = ".venv"

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


FLOOR = (
    Entry(name="one process, 1 thread", function="torch.one", world=1, threads=1),
    Entry(name="one process, 2 threads", function="torch.one", world=1, threads=2),
)


TORCH_SCHEDULES = ("gpipe", "1f1b", "interleaved", "interleaved zero bubble", "zb-v", "dualpipe-v")
ONE_EACH = {"micro_batch": 1}  # a micro-batch is one sequence


def pdtlib(name: str, **tables: Any) -> Entry:
    return Entry(name=f"pdtlib {name}", function="pdtlib.run", options=tables)


def deepspeed(stage: int) -> Entry:
    name = f"DeepSpeed ZeRO-{stage}"
    return Entry(name=name, function="deepspeed.zero", options={"stage": stage}, environment=".venv-targets")


def torch_entry(name: str, function: str, **options: Any) -> Entry:
    return Entry(name=f"torch {name}", function=f"torch.{function}", options=options)


def entries_of(kind: str, world: int) -> tuple[Entry, ...]:
    """The contenders of one kind of row."""
    if kind == "ddp":
        return (
            pdtlib("DDP"),
            torch_entry("DDP", "ddp"),
            torch_entry("DDP, bucket view", "ddp", gradient_as_bucket_view=True, set_to_none=False),
            torch_entry("DDP, static graph", "ddp", gradient_as_bucket_view=True, static_graph=True),
        )
    if kind == "zero1":
        return (
            pdtlib("ZeRO-1", train={"zero_stage": 1}),
            torch_entry("ZeroRedundancyOptimizer", "zero_redundancy"),
            deepspeed(1),
        )
    if kind == "zero2":
        return (
            pdtlib("ZeRO-2", train={"zero_stage": 2}),
            torch_entry("FSDP2, no reshard", "fsdp2", reshard=False),
            torch_entry("FSDP1, SHARD_GRAD_OP", "fsdp1", strategy="SHARD_GRAD_OP"),
            deepspeed(2),
        )
    if kind == "zero3":
        return (
            pdtlib("ZeRO-3", train={"zero_stage": 3}),
            torch_entry("FSDP2, reshard", "fsdp2", reshard=True),
            torch_entry("FSDP1, FULL_SHARD", "fsdp1", strategy="FULL_SHARD"),
            deepspeed(3),
        )
    if kind == "tp":
        tp = {"tp": world}
        return (
            pdtlib("TP", parallel=tp),
            pdtlib("TP + SP", parallel=tp, train={"sequence_parallel": True}),
            torch_entry("DTensor TP", "dtensor_tp", sequence=False),
            torch_entry("DTensor TP + SP", "dtensor_tp", sequence=True),
        )
    if kind == "2d":
        layout = {"dp": world // 2, "tp": 2}
        return (
            pdtlib("ZeRO-3 × TP + SP", parallel=layout, train={"zero_stage": 3, "sequence_parallel": True}),
            pdtlib("ZeRO-2 × TP + SP", parallel=layout, train={"zero_stage": 2, "sequence_parallel": True}),
            torch_entry("FSDP2 × TP + SP, reshard", "fsdp2_tp", tp=2, reshard=True),
            torch_entry("FSDP2 × TP + SP, no reshard", "fsdp2_tp", tp=2, reshard=False),
        )
    if kind == "pp":
        pipelines = [("1f1b", 1), ("gpipe", 1), ("zb-h1", 1)]
        if world <= 4:  # two chunks a rank
            pipelines += [("interleaved", 2), ("zb-v", 2)]
        peers = [name for name in TORCH_SCHEDULES if world <= 4 or name in ("gpipe", "1f1b")]
        return (
            *(
                pdtlib(f"PP {name}", parallel={"pp": world, "schedule": name, "vpp": chunks}, train=ONE_EACH)
                for name, chunks in pipelines
            ),
            *(
                Entry(name=f"torch PP {name}", function="torch_pipeline.run", options={"schedule": name})
                for name in peers
            ),
            Entry(name="DeepSpeed PP", function="deepspeed.pipeline", environment=".venv-targets"),
        )
    raise ValueError(f"kind={kind!r}: valid are {', '.join(KINDS)}")


KINDS = ("ddp", "zero1", "zero2", "zero3", "tp", "pp", "2d")


def rows(*, short: bool) -> Iterator[Row]:
    """All rows of the report, or the short form's."""
    worlds = (2,) if short else (2, 4, 8)
    for kind in KINDS:
        for world in worlds:
            if kind == "2d" and world < 4 and not short:
                continue
            size = 4 if kind == "2d" and short else world
            yield _row(kind, world=size, model="12M", precision="fp32")
    if not short:
        for kind in ("zero2", "zero3"):
            yield _row(kind, world=2, model="12M", precision="bf16")
        for kind in ("ddp", "zero2", "zero3", "tp"):
            yield _row(kind, world=2, model="50M", precision="fp32")


def _row(kind: str, *, world: int, model: str, precision: str) -> Row:
    return Row(
        name=f"{kind}, {world} ranks, {precision}, {model}",
        world=world,
        model=model,
        precision=precision,
        entries=(*FLOOR, *entries_of(kind, world)),
    )
