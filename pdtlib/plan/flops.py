"""FLOPs, training time and MFU, with every convention named.

A product of [m, k] and [k, n] matrices costs 2 m k n FLOPs; the backward pass costs twice the forward pass.
*Model* FLOPs are what the mathematics needs, *hardware* FLOPs are what is executed, recomputation included.
MFU is the share of peak that model FLOPs reach, HFU the share that hardware FLOPs reach.
"""

from dataclasses import dataclass

from pdtlib.plan.chunks import num_recomputed
from pdtlib.plan.presets import GPUS
from pdtlib.plan.spec import Job, Model

ATTENTION_CONVENTIONS = ("full", "causal", "none")


@dataclass(frozen=True, kw_only=True)
class Conventions:
    """What is counted. ``attention``: the whole s x s square (most papers), its causal half, or none (6ND).

    ``logits``: whether the product with the output embedding counts. ``embeddings``: whether looking a token
    up counts as a product with the input embedding, as 6 N D with all parameters in N does; nothing is
    multiplied there.
    """

    attention: str = "full"
    logits: bool = True
    embeddings: bool = False

    def __post_init__(self) -> None:
        if self.attention not in ATTENTION_CONVENTIONS:
            raise ValueError(f"attention={self.attention!r}; valid: {', '.join(ATTENTION_CONVENTIONS)}")


USUAL = Conventions()


@dataclass(frozen=True)
class ForwardFlops:
    """FLOPs of the forward pass for one token: products with layers' weights, attention core, logits.

    ``embeddings`` are 0 unless a convention counts looking a token up.
    """

    linear: float
    attention: float
    logits: float
    embeddings: float = 0.0

    @property
    def total(self) -> float:
        return self.linear + self.attention + self.logits + self.embeddings


def forward_per_token(model: Model, *, conventions: Conventions = USUAL) -> ForwardFlops:
    """Forward FLOPs per token; a token meets ``top_k`` experts, and a biased or scaled element costs nothing.

    >>> from pdtlib.plan import presets
    >>> round(3 * forward_per_token(presets.model("gpt3-175b")).total / 1e12, 3)  # per token, in TFLOP
    1.076
    """
    h = model.hidden
    q_size, kv_size = model.heads * model.head_dim, model.kv_heads * model.head_dim
    matrices = 3 if model.activation == "swiglu" else 2
    if model.moe is None:
        mlp = matrices * h * model.ffn
    else:
        mlp = model.moe.top_k * matrices * h * model.moe.ffn + h * model.moe.experts
    weights = h * (2 * q_size + 2 * kv_size) + mlp
    share = {"full": 1.0, "causal": 0.5, "none": 0.0}[conventions.attention]
    return ForwardFlops(
        linear=2.0 * model.layers * weights,
        attention=share * 4.0 * model.layers * model.seq * q_size,
        logits=2.0 * h * model.vocab if conventions.logits else 0.0,
        embeddings=2.0 * h * model.vocab if conventions.embeddings else 0.0,
    )


def model_flops_per_token(model: Model, *, conventions: Conventions = USUAL) -> float:
    """Model FLOPs of one training token, three forward passes (Korthikanti 2022, eq. 7, per token)."""
    return 3.0 * forward_per_token(model, conventions=conventions).total


def hardware_flops_per_token(
    model: Model,
    *,
    recompute: str,
    recomputed_layers: int | None = None,
    flash_attention: bool = False,
    conventions: Conventions = USUAL,
) -> float:
    """FLOPs executed for one training token; ``recomputed_layers`` of all layers run again, None is all.

    Full recomputation runs the layers, but not the logits, once more (Narayanan 2021, eq. 3). Selective
    recomputation and flash attention run the attention core once more. By convention flash attention's own
    recomputation inside its kernel is not counted when ``flash_attention`` is left False.
    """
    forward = forward_per_token(model, conventions=conventions)
    share = 1.0 if recomputed_layers is None else recomputed_layers / model.layers
    again = forward.attention if flash_attention else 0.0
    if recompute == "full":
        again = max(again, share * (forward.linear + forward.attention))
    elif recompute == "selective":
        again = max(again, share * forward.attention)
    return 3.0 * forward.total + again


def korthikanti_hardware_flops_per_token(model: Model) -> float:
    """Hardware FLOPs with selective recomputation as Korthikanti 2022, eq. 8, prints them.

    The equation's attention term is twice the model's: it charges recomputation with three times the forward
    pass of the attention core. Published HFU figures use it, so it is kept under its own name.
    """
    forward = forward_per_token(model)
    return 3.0 * (forward.total + forward.attention)


def model_flops_per_step(job: Job, *, conventions: Conventions = USUAL) -> float:
    """Model FLOPs of one optimizer step over the whole global batch."""
    tokens = job.train.global_batch * job.model.seq
    return tokens * model_flops_per_token(job.model, conventions=conventions)


def hardware_flops_per_step(job: Job, *, conventions: Conventions = USUAL) -> float:
    """FLOPs executed in one optimizer step over the whole global batch."""
    tokens = job.train.global_batch * job.model.seq
    again = sum(num_recomputed(job, stage) for stage in range(job.parallel.pp))
    return tokens * hardware_flops_per_token(
        job.model, recompute=job.train.recompute, recomputed_layers=again, conventions=conventions
    )


def training_flops(num_params: float, *, num_tokens: float, recompute: bool = False) -> float:
    """6 N D: 2 for the forward pass, 4 for the backward pass; 8 N D with full recomputation (Kaplan 2020).

    >>> training_flops(70e9, num_tokens=1e12)
    4.2e+23
    """
    return (8.0 if recompute else 6.0) * num_params * num_tokens


def attention_flops(model: Model, *, num_tokens: float, causal: bool = False) -> float:
    """What 6 N D leaves out: 12 L h s FLOPs a token for attention; half, if the masked half is skipped."""
    convention = Conventions(attention="causal" if causal else "full")
    return 3.0 * forward_per_token(model, conventions=convention).attention * num_tokens


def training_seconds(flops: float, *, num_gpus: int, peak_flops: float, mfu: float = 1.0) -> float:
    """Time to execute ``flops`` model FLOPs at utilisation ``mfu`` of every GPU's peak.

    >>> round(training_seconds(4.2e23, num_gpus=1, peak_flops=312e12) / 86400)
    15580
    """
    if not 0 < mfu <= 1:
        raise ValueError(f"mfu={mfu}; valid: above 0, at most 1")
    if num_gpus < 1:
        raise ValueError(f"num_gpus={num_gpus}; valid: 1 or more")
    return flops / (num_gpus * peak_flops * mfu)


def mfu(flops: float, *, seconds: float, num_gpus: int, peak_flops: float) -> float:
    """The share of peak that ``flops`` in ``seconds`` come to; above 1, an input is wrong."""
    return flops / (seconds * num_gpus * peak_flops)


def mfu_needed(flops: float, *, seconds: float, num_gpus: int, peak_flops: float) -> float:
    """The utilisation that a deadline asks for; a value above 1 cannot be met.

    >>> round(mfu_needed(4.2e23, seconds=11 * 86400, num_gpus=2048, peak_flops=312e12), 3)
    0.692
    """
    return mfu(flops, seconds=seconds, num_gpus=num_gpus, peak_flops=peak_flops)


def gpus_needed(flops: float, *, seconds: float, peak_flops: float, mfu: float) -> float:
    """GPUs that meet a deadline at a given utilisation, before rounding up."""
    return flops / (seconds * peak_flops * mfu)


PEAKS = ("dense", "sparse")


def peak_flops(gpu: str, *, precision: str = "bf16", peak: str = "dense") -> float:
    """The printed peak that a utilisation is a share of: 16-bit or fp8, dense or with 2:4 sparsity.

    Data sheets like to print the sparse rate, twice the dense one, which no dense product can reach: a
    utilisation of it is half of what it seems. Raises ``ValueError`` for an unknown GPU or peak, and for fp8
    where there is none.

    >>> [peak_flops("H100-SXM5", peak=peak) / 1e12 for peak in PEAKS]
    [989.4, 1978.8]
    """
    if gpu not in GPUS:
        raise ValueError(f"gpu={gpu!r}; valid: {', '.join(GPUS)}")
    if peak not in PEAKS:
        raise ValueError(f"peak={peak!r}; valid: {', '.join(PEAKS)}")
    dense = GPUS[gpu].peak_fp8_flops if precision == "fp8" else GPUS[gpu].peak_flops
    if dense is None:
        raise ValueError(f"precision='fp8': {gpu} has no fp8 units; valid: bf16, fp16")
    return dense * (2 if peak == "sparse" else 1)


def utilisation_warnings(mfu: float, hfu: float | None = None) -> list[str]:
    """What is wrong with a utilisation that cannot be: the usual traps, named.

    >>> utilisation_warnings(0.45, 0.5)
    []
    >>> len(utilisation_warnings(1.2))
    1
    """
    found = []
    if mfu > 1:
        found.append(
            "MFU above 100 %: FLOPs of the whole job over one GPU's peak, a time without part of the step, "
            "6 N D with N of all experts instead of the active ones, or a peak of another precision"
        )
    elif mfu > 0.75:
        found.append(
            "MFU above 75 %: no published run on GPUs reaches it; recomputation counted as model FLOPs, or "
            "too low a peak, are the usual reasons"
        )
    if hfu is not None and hfu < mfu:
        found.append("HFU below MFU: hardware FLOPs include all model FLOPs, so two conventions are mixed")
    return found
