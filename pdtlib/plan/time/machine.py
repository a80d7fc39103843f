"""What a step's time depends on besides the job: rates of the machine, habits of the software.

:mod:`pdtlib.plan.time.constants` holds the values and says where each comes from.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from pdtlib.plan.spec import CollectiveRate


@dataclass(frozen=True, kw_only=True)
class Chip:
    """Achieved rates of one accelerator.

    ``matmul_flops`` is what a large 16-bit product reaches; ``fp8_flops`` the same in fp8, 0 without such
    units. ``multiprocessors`` and ``ramp`` (elements of the inner dimension lost to filling a tile's
    pipeline) shape the time of smaller ones. ``memory_bytes_per_s`` is what an element-wise kernel moves.
    ``fp32_share`` is the rate of fp32 products as a share of ``matmul_flops``.

    A machine that was measured (:mod:`pdtlib.plan.time.measured`) has ``rates`` instead of tiles and waves:
    rising pairs of a product's FLOPs and the FLOP/s that it reached; and the optimizer's rate by itself.
    """

    name: str
    matmul_flops: float
    fp8_flops: float
    multiprocessors: int
    ramp: float
    memory_bytes_per_s: float
    fp32_share: float = 0.125
    rates: tuple[tuple[float, float], ...] = ()
    optimizer_bytes_per_s: float = 0.0


USUAL_PROTOCOLS = ((1.0, 0.11), (1.8, 0.72), (4.0, 1.0))
"""(factor on the latency, share of the rate) of the protocols inside a node: NCCL's LL, LL128 and Simple."""


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """Links of a cluster, one direction, as a rank achieves them.

    Inside a node a collective of message m takes the best of a few ``protocols``, each with a latency of
    ``intra_start_s + steps * intra_step_s`` times its factor; ``switch_gain`` is what a switch that reduces
    adds to an all-reduce over more than four ranks, ``pair_bytes_per_s`` what two GPUs have between them,
    less than the rest where no switch joins them. Between nodes a rank has its own network card.
    ``measured`` are collectives as they were timed inside a node, which then count instead.
    """

    name: str
    intra_bytes_per_s: float
    intra_start_s: float
    intra_step_s: float
    switch_gain: float
    pair_bytes_per_s: float
    inter_bytes_per_s: float
    inter_start_s: float
    inter_step_s: float
    protocols: tuple[tuple[float, float], ...] = USUAL_PROTOCOLS
    measured: tuple[CollectiveRate, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Software:
    """Habits of a training stack.

    ``passes`` multiplies the traffic of element-wise kernels (1 when all are fused, as compilers do).
    ``kernel_s`` is the host's time to launch one kernel, which bounds small layers. ``overlap_*`` are
    shares of communication that run beside computation: of tensor-parallel messages forwards and backwards
    (where the weights' gradients can hide them), of data-parallel ones, of sends between stages, of experts'
    all-to-alls. ``step_s`` is what every step costs besides (data, logging, Python). ``matmul_share``
    multiplies the chip's rate: clocks under load, kernels chosen. ``attention_share`` is the share of a large
    product's rate that its fused attention kernel reaches, ``inter_share`` the share of the network's rate
    that its collectives reach, ``fp8_share`` the share of the chip's fp8 rate that quantising leaves.
    ``stops_early`` says that recomputation ends with the last tensor that the backward pass needs, before the
    layer's last product, as torch's non-reentrant checkpoints do and Megatron's do not.
    """

    name: str
    passes: float
    kernel_s: float
    overlap_tp: float
    overlap_tp_back: float
    overlap_dp: float
    overlap_pp: float
    overlap_ep: float
    step_s: float
    matmul_share: float
    attention_share: float
    inter_share: float
    fp8_share: float
    skips_masked_half: bool
    stops_early: bool


@dataclass(frozen=True, kw_only=True)
class Habits:
    """What a framework holds besides the formulas.

    ``accounting`` names one of :data:`pdtlib.plan.states.ACCOUNTINGS`. ``kept`` multiplies the activations of
    the formulas; ``kept_of_half`` is the share that stays when every other layer or product is recomputed.
    ``logits_factor`` multiplies the loss's fp32 logits: copies, gradient. ``overhead_bytes`` is the rest.
    """

    accounting: str
    kept: float = 1.0
    kept_of_half: float = 0.6
    logits_factor: float = 2.0
    overhead_bytes: float = 2e9


@dataclass(frozen=True, kw_only=True)
class System:
    """A cluster and the software on it."""

    chip: Chip
    fabric: Fabric
    software: Software
    gpus_per_node: int

    @cached_property
    def links(self) -> Fabric:
        """The fabric as this software uses it."""
        rate = self.fabric.inter_bytes_per_s * self.software.inter_share
        return replace(self.fabric, inter_bytes_per_s=rate)
