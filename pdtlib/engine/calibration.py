"""Measure the machine: products, memory, attention, optimizer, one layer, and collectives by world size.

Every rank measures at the same time, since ranks that share cores, memory or links share their rates too.
What comes out is what :class:`pdtlib.plan.spec.Measured` holds, and predicts on this machine.
"""

from __future__ import annotations

import datetime
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from pdtlib.engine.collectives import all_gather, all_reduce, all_to_all, broadcast, reduce_scatter
from pdtlib.engine.dist import spawn
from pdtlib.engine.mesh import Group, build_mesh
from pdtlib.engine.models import Transformer
from pdtlib.plan.comm import sent_bytes
from pdtlib.plan.spec import CollectiveRate, ComputeRate, Hardware, Job, Measured, Model, Train
from pdtlib.plan.states import engine_accounting, optimizer_traffic
from pdtlib.plan.time.layer import layer_time
from pdtlib.plan.time.measured import measured_system

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
COLLECTIVES: dict[str, Callable[..., torch.Tensor]] = {
    "all_reduce": all_reduce,
    "reduce_scatter": reduce_scatter,
    "all_gather": all_gather,
    "all_to_all": all_to_all,
    "broadcast": broadcast,
}


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much is measured: sizes of square products, of messages (elements), of a layer; for how long."""

    matmuls: tuple[int, ...]
    messages: tuple[int, ...]
    hidden: int
    tokens: int
    elements: int
    seconds: float


def effort(device: str, *, short: bool) -> Effort:
    """What is measured on ``cpu`` or ``cuda``; ``short`` is enough to see that everything works."""
    if device == "cuda":
        sizes = (256, 1024, 4096) if short else (128, 256, 512, 1024, 2048, 4096, 8192)
        messages = (2**12, 2**22) if short else (2**12, 2**18, 2**24, 2**27)
        return Effort(matmuls=sizes, messages=messages, hidden=2048, tokens=4096, elements=2**26, seconds=0.2)
    sizes = (32, 128, 256) if short else (16, 32, 64, 128, 256, 512, 1024)
    messages = (2**10, 2**18) if short else (2**8, 2**14, 2**18, 2**21)
    seconds = 0.03 if short else 0.2
    return Effort(matmuls=sizes, messages=messages, hidden=256, tokens=256, elements=2**21, seconds=seconds)


MOST_CPU_RANKS = 64
"""More processes on one machine's cores measure nothing but their scheduling."""


def calibrate(*, ranks: int | None = None, short: bool = False, device: str = "auto") -> Hardware:
    """The hardware of this machine, measured with 1, 2, 4 ... ``ranks`` processes.

    ``ranks`` defaults to the number of GPUs, or of the processor's cores but 8 at most. Raises ValueError for
    a device that is not here, or another number of ranks than it can have.
    """
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device={device!r}; valid: auto, cpu, cuda")
    gpus = torch.cuda.device_count()
    if device == "cuda" and not gpus:
        raise ValueError("device='cuda': there is no GPU here; valid: auto, cpu")
    kind = "cuda" if gpus and device != "cpu" else "cpu"
    most = gpus if kind == "cuda" else min(8, os.cpu_count() or 1)
    ranks = most if ranks is None else ranks
    limit = gpus if kind == "cuda" else MOST_CPU_RANKS
    if not 1 <= ranks <= limit:
        raise ValueError(f"ranks={ranks}; valid: 1 to {limit}")
    counts = sorted({ranks, *(2**power for power in range(ranks.bit_length()) if 2**power < ranks)})
    compute: list[ComputeRate] = []
    collectives: list[CollectiveRate] = []
    for world in counts:
        found = spawn(
            measure_rank,
            world,
            kind,
            short,
            timeout_s=600.0,
            num_threads=max(1, (os.cpu_count() or 1) // world),
            backend="nccl" if kind == "cuda" else "gloo",
        )
        rows, links = found[0]
        compute += rows
        collectives += links
    measured = Measured(
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        host=describe(kind),
        memory_bytes=memory_of_rank(kind, ranks),
        compute=tuple(compute),
        collectives=tuple(collectives),
    )
    return Hardware(gpu=gpu_name(kind), gpus_per_node=ranks, n_gpus=ranks, measured=measured)


def gpu_name(kind: str) -> str:
    """The preset's name of the GPU here where there is one, else the driver's; ``cpu`` without a GPU."""
    from pdtlib.observe.meters import DEVICE_NAMES

    if kind == "cpu":
        return "cpu"
    name = torch.cuda.get_device_name(0)
    return next((preset for part, preset in DEVICE_NAMES if part in name), name)


def describe(kind: str) -> str:
    """The machine in words: no host name, no user, no path."""
    parts = [f"{os.cpu_count()} cores {platform.machine()}", platform.system()]
    if kind == "cuda":
        parts.insert(0, f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}")
    return ", ".join([*parts, f"torch {torch.__version__}", "nccl" if kind == "cuda" else "gloo"])


def memory_of_rank(kind: str, ranks: int) -> float:
    """Bytes that a rank may hold: its GPU's memory, or its share of the machine's."""
    if kind == "cuda":
        return float(torch.cuda.get_device_properties(0).total_memory)
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) / ranks


def measure_rank(kind: str, short: bool) -> tuple[list[ComputeRate], list[CollectiveRate]]:
    """What this rank reaches while all others of its group do the same."""
    rank = int(os.environ["RANK"])
    device = torch.device("cuda", rank) if kind == "cuda" else torch.device("cpu")
    plan = effort(kind, short=short)
    group = build_mesh(device_type=kind).group("dp")
    clock = Clock(device, group, plan.seconds)
    rows = [compute_rate(precision, plan, clock) for precision in DTYPES]
    return rows, [] if group.size == 1 else collective_rates(plan, clock)


class Clock:
    """Times something that all ranks do at once and equally often; the slowest rank counts.

    Of a rank's times the lower quartile counts, which other programs disturb less than the median.
    """

    def __init__(self, device: torch.device, group: Group, seconds: float) -> None:
        self.device, self.group, self.seconds = device, group, seconds

    def __call__(self, work: Callable[[], Any]) -> float:
        """Seconds of ``work``."""
        self._timed(work)  # the first call prepares
        first_s = self._agreed(self._timed(work))
        times = max(5, min(200, math.ceil(self.seconds / max(first_s, 1e-7))))
        return self._agreed(statistics.quantiles([self._timed(work) for _ in range(times)])[0])

    def _timed(self, work: Callable[[], Any]) -> float:
        self._synchronize()
        start = time.perf_counter()
        work()
        self._synchronize()
        return time.perf_counter() - start

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _agreed(self, seconds: float) -> float:
        mine = torch.tensor([seconds], dtype=torch.float64, device=self.device)
        return float(all_gather(mine, self.group, phase="calibration").max())


def compute_rate(precision: str, plan: Effort, clock: Clock) -> ComputeRate:
    """The rates of one precision; ``passes`` and ``kernel_s`` make a real layer's time come true."""
    dtype, device = DTYPES[precision], clock.device
    matmul = []
    for size in plan.matmuls:
        left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
        matmul.append((2.0 * size**3, 2.0 * size**3 / clock(partial(torch.matmul, left, right))))
    rate = ComputeRate(
        ranks=clock.group.size,
        precision=precision,
        matmul=tuple(matmul),
        attention_flops_per_s=_attention_rate(dtype, plan, clock),
        memory_bytes_per_s=_memory_rate(dtype, plan, clock),
        optimizer_bytes_per_s=_optimizer_rate(precision, plan, clock),
        passes=1.0,
        kernel_s=0.0,
    )
    tiny_s = _layer_s(dtype, 16, 8, clock)
    layer_s = _layer_s(dtype, plan.hidden, plan.tokens, clock)
    unit = _predicted_layer_s(replace(rate, kernel_s=1.0), 16, 8)
    rate = replace(rate, kernel_s=tiny_s / unit)
    once, twice = (
        _predicted_layer_s(replace(rate, passes=passes), plan.hidden, plan.tokens) for passes in (1.0, 2.0)
    )
    slope = max(twice - once, 1e-12)
    return replace(rate, passes=max(0.1, 1.0 + (layer_s - once) / slope))


def _attention_rate(dtype: torch.dtype, plan: Effort, clock: Clock) -> float:
    """FLOP/s of the causal attention core forwards, the masked half not counted."""
    heads, dim = plan.hidden // 64, 64
    q, k, v = (torch.randn(1, heads, plan.tokens, dim, device=clock.device).to(dtype) for _ in range(3))
    seconds = clock(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
    return 2.0 * heads * plan.tokens**2 * dim / seconds


def _memory_rate(dtype: torch.dtype, plan: Effort, clock: Clock) -> float:
    """Bytes a second of adding two tensors into a third."""
    a, b, out = (torch.ones(plan.elements, device=clock.device, dtype=dtype) for _ in range(3))
    return 3 * out.nbytes / clock(lambda: torch.add(a, b, out=out))


def _optimizer_rate(precision: str, plan: Effort, clock: Clock) -> float:
    """Traffic a second of the gradient's norm and torch's fused AdamW on fp32 masters, and of the working
    copy."""
    accounting = engine_accounting(precision)
    dtype = DTYPES[precision]
    master = torch.nn.Parameter(torch.ones(plan.elements, device=clock.device))
    working, grad = (torch.ones(plan.elements, device=clock.device, dtype=dtype) for _ in range(2))
    optimizer = torch.optim.AdamW([master], fused=True)

    def step() -> None:
        torch.linalg.vector_norm(grad, dtype=torch.float32)
        master.grad = grad.to(torch.float32)
        optimizer.step()
        working.copy_(master.detach())

    return optimizer_traffic(accounting) * plan.elements / clock(step)


def _layer_model(hidden: int, tokens: int) -> Model:
    heads = max(1, hidden // 64)
    return Model(layers=1, hidden=hidden, heads=heads, vocab=8, seq=tokens, activation="swiglu")


def _layer_s(dtype: torch.dtype, hidden: int, tokens: int, clock: Clock) -> float:
    """Seconds of our own layer, forwards and backwards."""
    model = _layer_model(hidden, tokens)
    layer = Transformer(model, layers=range(1), first=False, last=False, device=clock.device, dtype=dtype)
    x = torch.randn(1, tokens, hidden, device=clock.device).to(dtype).requires_grad_()
    return clock(lambda: layer(x).sum().backward())


def _predicted_layer_s(rate: ComputeRate, hidden: int, tokens: int) -> float:
    """The same as the plan has it under these rates."""
    measured = Measured(date="", host="", memory_bytes=1.0, compute=(rate,))
    hardware = Hardware(gpus_per_node=rate.ranks, measured=measured)
    job = Job(model=_layer_model(hidden, tokens), train=Train(precision=rate.precision), hardware=hardware)
    times = layer_time(job, system=measured_system(job, measured))
    return times.forward.total + times.backward.total


def collective_rates(plan: Effort, clock: Clock) -> list[CollectiveRate]:
    """Latency and rate of every collective: the straight line through its smallest and largest message."""
    size = clock.group.size
    found = []
    for name, collective in COLLECTIVES.items():
        line = []
        for elements in (plan.messages[0], plan.messages[-1]):
            whole = elements // size * size
            held = whole // size if name == "all_gather" else whole
            x = torch.ones(held, device=clock.device)
            seconds = clock(partial(collective, x, clock.group, phase="calibration"))
            line.append((sent_bytes(name, 4.0 * whole, size), seconds))
        found.append(_line(name, size, line))
    return found


def _line(name: str, size: int, line: Sequence[tuple[float, float]]) -> CollectiveRate:
    (small, fast_s), (large, slow_s) = line
    rate = large / slow_s  # latency hides the slope of small messages
    if slow_s > 1.1 * fast_s:
        rate = (large - small) / (slow_s - fast_s)
    return CollectiveRate(
        collective=name, ranks=size, start_s=max(0.0, fast_s - small / rate), bytes_per_s=rate
    )
