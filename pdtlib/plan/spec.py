"""What a training run is made of: the fields of a job, their kinds, their defaults.

A job has four parts: the model's shape, how it is trained, how it is spread, and on what. Every field states
here what values it may take, so that the reader of a job file, :mod:`pdtlib.plan.validate` and the writer of
TOML all read the same table. Nothing here checks a value: a job from outside goes through
:func:`pdtlib.plan.job.from_dict`, which reports every problem at once.
"""

from dataclasses import dataclass, field
from typing import Annotated


@dataclass(frozen=True)
class Whole:
    """A whole number of at least ``minimum``."""

    minimum: int = 1
    maximum: int | None = None


@dataclass(frozen=True)
class Real:
    """A finite number with ``minimum <= value`` and ``value < below``."""

    minimum: float = 0.0
    below: float | None = None


@dataclass(frozen=True)
class OneOf:
    """One of a few names."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class Text:
    """Any text."""


@dataclass(frozen=True)
class Pairs:
    """One or more pairs of numbers above 0, the first numbers rising."""


@dataclass(frozen=True)
class Rows:
    """Zero or more tables of one kind."""

    kind: type


Count = Annotated[int, Whole(1, 10**12)]
Few = Annotated[int, Whole(1, 10_000)]

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe")


@dataclass(frozen=True)
class Problem:
    """One reason why a job cannot work: the dotted path of the field, what is wrong, values that would do."""

    field: str
    message: str
    valid: tuple[object, ...] = ()

    def __str__(self) -> str:
        text = f"{self.field}: {self.message}"
        return f"{text} (valid: {', '.join(map(str, self.valid))})" if self.valid else text


class JobError(ValueError):
    """A job that cannot work, with all its problems."""

    def __init__(self, problems: list[Problem]):
        self.problems = problems
        super().__init__("\n".join(map(str, problems)))


@dataclass(frozen=True, kw_only=True)
class MoE:
    """A mixture of experts in place of the MLP of every layer.

    ``experts`` gated networks of inner size ``ffn``; every token goes through ``top_k`` of them.
    ``capacity_factor`` times its even share of a micro-batch is the most that an expert takes, the rest is
    dropped; 0 drops nothing. ``aux_loss`` is the weight of the load-balancing loss.
    """

    experts: Few
    top_k: Few
    ffn: Count
    capacity_factor: Annotated[float, Real(0.0)] = 0.0
    aux_loss: Annotated[float, Real(0.0)] = 0.0


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """Rotary positions slowed down after training on ``original_seq`` positions, as Llama 3.1 has them.

    Waves shorter than ``original_seq / high_freq_factor`` stay, those longer than ``original_seq /
    low_freq_factor`` become ``factor`` times as long, those between something between.
    """

    factor: Annotated[float, Real(1.0)]
    low_freq_factor: Annotated[float, Real(1e-6)]
    high_freq_factor: Annotated[float, Real(1e-6)]
    original_seq: Count


@dataclass(frozen=True, kw_only=True)
class Model:
    """The shape of a decoder-only Transformer. GPT style and Llama style are two settings of it.

    An omitted field follows the family that ``activation`` names: gelu means GPT-2's layernorm, learned
    positions, biases everywhere and an MLP of 4 x hidden; swiglu means Llama's rmsnorm, rotary positions, no
    biases and an MLP of 8/3 x hidden rounded up to a multiple of 256. ``kv_heads`` defaults to ``heads`` and
    ``head_dim`` to ``hidden / heads``. In Python, 0 and "" stand for "omitted". ``rope_theta`` is the base of
    the rotary positions' wavelengths (Su 2021, arXiv:2104.09864, section 3.2.2), which ``rope_scaling``
    stretches; ``norm_eps`` is what a norm adds to the variance.
    """

    name: Annotated[str, Text()] = ""
    layers: Few
    hidden: Count
    heads: Count
    kv_heads: Count = 0
    head_dim: Count = 0
    ffn: Count = 0
    vocab: Count
    seq: Count
    activation: Annotated[str, OneOf(("gelu", "swiglu"))] = "gelu"
    norm: Annotated[str, OneOf(("layernorm", "rmsnorm"))] = ""
    positions: Annotated[str, OneOf(("learned", "rotary"))] = ""
    tied_embeddings: bool = False
    biases: Annotated[str, OneOf(("none", "qkv", "all"))] = ""
    qk_norm: bool = False
    dropout: Annotated[float, Real(0.0, 1.0)] = 0.0
    rope_theta: Annotated[float, Real(1.0)] = 10000.0
    norm_eps: Annotated[float, Real(1e-12, 1.0)] = 1e-5
    rope_scaling: RopeScaling | None = None
    moe: MoE | None = None

    def __post_init__(self) -> None:
        norm = self.norm or ("rmsnorm" if self.activation == "swiglu" else "layernorm")
        usual: dict[str, object] = {
            "kv_heads": self.heads,
            "head_dim": self.hidden // self.heads,
            "ffn": usual_ffn(self.hidden, self.activation) if self.moe is None else self.moe.ffn,
            "norm": norm,
            "positions": "learned" if norm == "layernorm" else "rotary",
            "biases": "all" if norm == "layernorm" else "none",
        }
        fill_in(self, usual)


@dataclass(frozen=True, kw_only=True)
class Train:
    """How the model is trained. ``global_batch`` is in sequences; omitted, it is one micro-batch a rank.

    ``clip_grad_norm = 0`` means no clipping. ``grad_precision`` is what gradients are kept and reduced in:
    the parameters' own precision or fp32. ``reshard_after_forward`` is ZeRO-3's choice: free the gathered
    parameters after the forward pass and gather them again for the backward pass, or keep them.
    ``recompute_layers`` recomputes the first so many layers of each chunk alone, a chunk being a run of
    layers that a rank holds; omitted (0), all of them.
    """

    global_batch: Count = 0
    micro_batch: Count = 1
    precision: Annotated[str, OneOf(("fp32", "bf16", "fp16", "fp8"))] = "bf16"
    grad_precision: Annotated[str, OneOf(("same", "fp32"))] = "same"
    optimizer: Annotated[str, OneOf(("adamw",))] = "adamw"
    zero_stage: Annotated[int, Whole(0, 3)] = 0
    reshard_after_forward: bool = True
    recompute: Annotated[str, OneOf(("none", "selective", "full"))] = "none"
    recompute_layers: Few = 0
    sequence_parallel: bool = False
    flash_attention: bool = True
    clip_grad_norm: Annotated[float, Real(0.0)] = 1.0
    seed: Annotated[int, Whole(0, 2**63 - 1)] = 0
    steps: Count = 100
    learning_rate: Annotated[float, Real(0.0)] = 3e-4
    weight_decay: Annotated[float, Real(0.0)] = 0.1
    warmup_steps: Annotated[int, Whole(0)] = 0


@dataclass(frozen=True, kw_only=True)
class Parallel:
    """How the model and the batch are spread over ``dp x tp x pp x cp`` ranks.

    Expert parallelism takes its ranks from dp x cp and adds none. ``schedule`` defaults to 1f1b, or to
    interleaved when ``vpp > 1``. ``vpp`` defaults to 1, or to the 2 chunks that ZB-V always has.
    """

    dp: Count = 1
    tp: Count = 1
    pp: Count = 1
    cp: Count = 1
    ep: Count = 1
    vpp: Few = 0
    schedule: Annotated[str, OneOf(SCHEDULES)] = ""
    context: Annotated[str, OneOf(("ring", "ulysses"))] = "ring"

    def __post_init__(self) -> None:
        fill_in(self, {"vpp": 2 if self.schedule == "zb-v" and self.pp > 1 else 1})
        fill_in(self, {"schedule": "interleaved" if self.vpp > 1 else "1f1b"})

    @property
    def world_size(self) -> int:
        return self.dp * self.tp * self.pp * self.cp


_Rate = Annotated[float, Real(1e-30)]


@dataclass(frozen=True, kw_only=True)
class ComputeRate:
    """What one rank reaches while ``ranks`` of the machine work at once, in one precision.

    ``matmul`` are a product's FLOPs and the FLOP/s that it reached. ``memory_bytes_per_s`` is what a simple
    element-wise kernel moves, ``passes`` how often a layer moves what it must, ``kernel_s`` what its
    smallest kernels take. ``optimizer_bytes_per_s`` is AdamW's traffic
    (:func:`pdtlib.plan.states.optimizer_traffic`).
    """

    ranks: Few
    precision: Annotated[str, OneOf(("fp32", "bf16", "fp16"))]
    matmul: Annotated[tuple[tuple[float, float], ...], Pairs()]
    attention_flops_per_s: _Rate
    memory_bytes_per_s: _Rate
    optimizer_bytes_per_s: _Rate
    passes: _Rate
    kernel_s: Annotated[float, Real(0.0)]


@dataclass(frozen=True, kw_only=True)
class CollectiveRate:
    """A collective among ``ranks``: seconds before the first byte, and bytes a second that a rank sends."""

    collective: Annotated[
        str, OneOf(("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "send"))
    ]
    ranks: Annotated[int, Whole(2, 10_000)]
    start_s: Annotated[float, Real(0.0)]
    bytes_per_s: _Rate


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What ``pdt calibrate`` measured of one machine, on a day. ``memory_bytes`` is what a rank may hold."""

    date: Annotated[str, Text()]
    host: Annotated[str, Text()]
    memory_bytes: _Rate
    compute: Annotated[tuple[ComputeRate, ...], Rows(ComputeRate)]
    collectives: Annotated[tuple[CollectiveRate, ...], Rows(CollectiveRate)] = ()


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """What the job runs on: a GPU of :data:`pdtlib.plan.presets.GPUS` or ``cpu``, and the links.

    ``n_gpus`` counts processes; omitted, it is what the degrees need. ``inter`` names the link between nodes.
    ``measured`` are the rates of the machine itself, which a file of ``pdt calibrate`` brings along.
    """

    gpu: Annotated[str, Text()] = "cpu"
    n_gpus: Count = 0
    gpus_per_node: Count = 8
    inter: Annotated[str, Text()] = ""
    measured: Measured | None = None


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training run, described once."""

    model: Model
    train: Train = field(default_factory=Train)
    parallel: Parallel = field(default_factory=Parallel)
    hardware: Hardware = field(default_factory=Hardware)

    def __post_init__(self) -> None:
        fill_in(self.train, {"global_batch": self.train.micro_batch * self.parallel.dp})
        fill_in(self.hardware, {"n_gpus": self.parallel.world_size})

    @property
    def gradient_accumulation(self) -> int:
        """Micro-batches that each data-parallel replica runs in a step."""
        return self.train.global_batch // (self.train.micro_batch * self.parallel.dp)


def usual_ffn(hidden: int, activation: str) -> int:
    """The usual inner size of an MLP: 4h, or for a gated one 8h/3 rounded up to a multiple of 256.

    >>> usual_ffn(768, "gelu"), usual_ffn(4096, "swiglu")
    (3072, 11008)
    """
    if activation == "gelu":
        return 4 * hidden
    return -(-8 * hidden // (3 * 256)) * 256


def fill_in(target: object, usual: dict[str, object]) -> None:
    """Set the fields of a frozen dataclass that were left at "omitted" (0 or "")."""
    for name, value in usual.items():
        if not getattr(target, name):
            object.__setattr__(target, name, value)
