"""The article's introduction and section 1: one GPU is not enough."""

from __future__ import annotations

import math

from pdtlib.book.claims.judge import (
    ASSUMPTION,
    EXACT,
    IMPRECISE,
    WRONG,
    Finding,
    Reading,
    Register,
    near,
    prints_as,
)
from pdtlib.book.claims.published import (
    LLAMA2_70B_GPU_HOURS,
    LLAMA2_70B_TOKENS,
    LLAMA2_RUN,
    LLAMA_RUN,
    MEGASCALE_256,
)
from pdtlib.plan import activations, flops, presets
from pdtlib.plan.states import ACCOUNTINGS, fits_from, largest_model
from pdtlib.plan.units import DAY_S, GB, GIB, flops_text, percent_text

REGISTER = Register()
claim = REGISTER.claim

PARAMS = presets.ARTICLE_70B_PARAMS
TOKENS = 1e12
A100 = presets.GPUS["A100-SXM4-80"]
CARD = A100.memory_bytes

ARITHMETIC = "arithmetic"
ZERO = "ZeRO (arXiv:1910.02054), section 3.1"
MEGATRON = "Megatron-LM, guide to the distributed optimizer"
MIXED = "Mixed Precision Training (arXiv:1710.03740)"
KORTHIKANTI = "Korthikanti et al. (arXiv:2205.05198), sections 4 and 5"
KAPLAN = "Kaplan et al. (arXiv:2001.08361), section 2.1"
CHINCHILLA = "Hoffmann et al. (arXiv:2203.15556)"
NARAYANAN = "Narayanan et al. (arXiv:2104.04473)"
PALM = "PaLM (arXiv:2204.02311), appendix B"
DATASHEET = "NVIDIA's A100 data sheet"
MEASURED_MATMUL = "ml-engineering, table of measured matrix products"


def days(gpus: float, *, mfu: float = 1.0, num_params: float = PARAMS, tokens: float = TOKENS) -> float:
    """Days of training by 6 N D on A100s."""
    work = flops.training_flops(num_params, num_tokens=tokens)
    return work / (gpus * A100.peak_flops * mfu) / DAY_S


def states_gb(accounting: str) -> float:
    """Model states of the 70B model under one accounting, in GB."""
    return ACCOUNTINGS[accounting].total * PARAMS / GB


@claim(
    "C0-a",
    says="A model of 100 billion parameters needs thousands of GPUs for weeks.",
    registered=ASSUMPTION,
    sources=(KAPLAN, "BLOOM (arXiv:2211.05100)", "OPT (arXiv:2205.01068)"),
)
def _thousands_of_gpus() -> Finding:
    took = days(2048, mfu=0.45, num_params=100e9)
    on_bloom = days(384, mfu=0.45, num_params=176e9, tokens=366e9)
    weeks = 7 <= took <= 60
    return Finding(
        f"With 1 trillion tokens on 2,048 A100s at 45 % MFU it is {took:.1f} days. With fewer tokens, "
        "hundreds of GPUs do: by the same formula BLOOM's 176 billion parameters and 366 billion tokens "
        f"take 384 A100s {on_bloom / 30.4:.1f} months. And {flops_text(6 * 100e9 * TOKENS)} FLOPs is the "
        "very figure that section 1.2 gives for 70 billion parameters.",
        [
            Reading("1 trillion tokens on A100s: thousands of GPUs, weeks", weeks),
            Reading("any training of that size needs thousands of GPUs", on_bloom > 365),
        ],
    )


@claim(
    "C0-b",
    says="How well you use the GPUs decides cost and speed, and the parallel strategy is the core of that.",
    registered=ASSUMPTION,
)
def _strategy_decides() -> Finding:
    saved = 1 - days(2048, mfu=0.45) / days(2048, mfu=0.30)
    return Finding(
        "A judgement. Cost is GPU-hours, and those are FLOPs over peak times MFU: from 30 % to 45 % MFU "
        f"saves {percent_text(saved, digits=0)}. Kernels, precision, data and lost hours matter as well."
    )


@claim("C1.1-a", says="70B parameters in FP16 take 140 GB.", registered=EXACT, sources=(ARITHMETIC,))
def _weights() -> Finding:
    weights = ACCOUNTINGS["zero-16"].params * PARAMS
    return Finding(
        f"{PARAMS / 1e9:.0f}e9 × 2 bytes = {weights / GB:.0f} GB, which is {weights / GIB:.1f} GiB.",
        [Reading("2 bytes a parameter, decimal GB", prints_as(weights / GB, 140))],
    )


@claim(
    "C1.1-b",
    says="Their gradients in FP16 take 140 GB.",
    registered=ASSUMPTION,
    sources=(ZERO, MEGATRON),
)
def _gradients() -> Finding:
    short = ACCOUNTINGS["zero-16"].grads * PARAMS / GB
    long = ACCOUNTINGS["megatron-18"].grads * PARAMS / GB
    return Finding(
        f"{short:.0f} GB if gradients stay in 16 bit. Megatron keeps fp32 gradients in bf16 training: "
        f"{long:.0f} GB.",
        [
            Reading("16-bit gradients", prints_as(short, 140)),
            Reading("fp32 gradients", prints_as(long, 140)),
        ],
    )


@claim(
    "C1.1-c",
    says="Adam's state in FP32 takes 560 GB.",
    registered=IMPRECISE,
    sources=(ZERO, MIXED),
)
def _optimizer() -> Finding:
    moments = ACCOUNTINGS["no-master-12"].optimizer * PARAMS / GB
    master = ACCOUNTINGS["zero-16"].optimizer * PARAMS / GB
    return Finding(
        f"Two fp32 moments are {moments:.0f} GB. Mixed precision also keeps an fp32 master copy of the "
        f"weights: {master:.0f} GB. Without it small updates round away, so normal recipes keep it.",
        [
            Reading("two moments and the master copy", prints_as(master, 560)),
            Reading("moments alone, on pure 16-bit weights", prints_as(moments, 560), usual=False),
        ],
    )


@claim(
    "C1.1-d",
    says="Activation memory depends on batch and sequence length.",
    registered=ASSUMPTION,
    sources=(KORTHIKANTI, "lab 01"),
)
def _activations() -> Finding:
    model = presets.model("article-70b")

    def gib(**setting: object) -> float:
        chosen = activations.Setting(**{"seq": 4096, **setting})  # type: ignore[arg-type]
        return activations.layer_bytes(model, setting=chosen) * model.layers / GIB

    bare = gib()
    split = gib(tp=8, sequence_parallel=True)
    selective = gib(tp=8, sequence_parallel=True, recompute="selective")
    full = gib(recompute="full")
    return Finding(
        "It also depends on hidden size, layers, heads, parallelism and recomputation. For the same 4,096 "
        f"tokens the 70B shape keeps {bare:.0f} GiB with nothing, {split:.1f} GiB with tensor and sequence "
        f"parallelism over 8 GPUs, {selective:.1f} GiB with selective recomputation too, and {full:.1f} GiB "
        "with full recomputation.",
        [
            Reading(
                "with model, layout and recomputation fixed",
                gib(micro_batch=2) == 2 * bare and gib(seq=8192) > 2 * bare,
            ),
            Reading("batch and sequence length are all that counts", bare == split == selective == full),
        ],
    )


@claim("C1.1-e", says="In all that is 840 GB and more.", registered=IMPRECISE, sources=(ZERO, MEGATRON))
def _total() -> Finding:
    names = {"zero-16": "ZeRO", "megatron-18": "Megatron, bf16", "megatron-fp16-20": "Megatron, fp16"}
    totals = {name: states_gb(name) for name in names}
    article = states_gb("no-master-12")
    low, high = (article / totals[name] - 1 for name in ("zero-16", "megatron-fp16-20"))
    listed = ", ".join(f"{totals[key]:,.0f} GB ({text})" for key, text in names.items())
    return Finding(
        f"The sum is right for 12 bytes a parameter. The countings in use give {listed}. So the figure is "
        f"{-low * 100:.0f} to {-high * 100:.0f} % too low before any activation.",
        [
            *(Reading(text, prints_as(totals[name], 840)) for name, text in names.items()),
            Reading("12 bytes a parameter, no master copy", prints_as(article, 840), usual=False),
        ],
    )


@claim("C1.1-f", says="That is far beyond the 80 GB of one A100.", registered=EXACT, sources=(ARITHMETIC,))
def _beyond_one_card() -> Finding:
    accountings = ("no-master-12", "zero-16", "megatron-18")
    times = [states_gb(name) * GB / CARD for name in accountings]
    largest = [largest_model(CARD, dp=1, stage=0, accounting=ACCOUNTINGS[name]) / 1e9 for name in accountings]
    cards = [
        fits_from(PARAMS, capacity_bytes=CARD, stage=3, accounting=ACCOUNTINGS[name]) for name in accountings
    ]
    return Finding(
        f"{times[0]:.1f} times at 12 bytes a parameter, {times[1]:.1f} times at 16. The largest model whose "
        f"states alone fit has {largest[0]:.1f}, {largest[1]:.1f} or {largest[2]:.1f} billion parameters at "
        f"12, 16 or 18 bytes. Spread evenly, the 70B states need at least {cards[0]} cards at 12 bytes and "
        f"{cards[1]} at 16.",
        [
            Reading(f"at {ACCOUNTINGS[name].total} bytes a parameter", ratio > 2)
            for name, ratio in zip(accountings, times, strict=True)
        ],
    )


@claim(
    "C1.2-a",
    says="One A100 delivers 312 TFLOPS in FP16.",
    registered=ASSUMPTION,
    sources=(DATASHEET, MEASURED_MATMUL),
)
def _peak() -> Finding:
    assert A100.matmul_flops is not None
    dense = A100.peak_flops / 1e12
    return Finding(
        f"{dense:.0f} TFLOP/s is the peak for dense matrices. The same sheet prints {2 * dense:.0f} with "
        f"structured zeros. The best measured matrix product reaches {A100.matmul_flops / 1e12:.1f}, "
        f"{percent_text(A100.matmul_flops / A100.peak_flops)} of peak, so no program delivers it.",
        [
            Reading("peak for dense matrices", prints_as(dense, 312)),
            Reading("best measured rate", prints_as(A100.matmul_flops / 1e12, 312)),
        ],
    )


@claim(
    "C1.2-b",
    says="One epoch is one trillion tokens.",
    registered=ASSUMPTION,
    sources=(CHINCHILLA, LLAMA2_RUN.source),
)
def _epoch() -> Finding:
    optimal = 20 * PARAMS
    return Finding(
        "A convention of the article. About 20 tokens a parameter, which Chinchilla found optimal for a "
        f"given amount of compute, is {optimal / 1e12:.1f} trillion for 70B. Llama 2 70B saw "
        f"{LLAMA2_70B_TOKENS / 1e12:.0f} trillion.",
        [
            Reading("as a convention for what follows", near(TOKENS, 1e12)),
            Reading("compute-optimal training", near(optimal, 1e12)),
            Reading("what Llama 2 70B was trained on", near(LLAMA2_70B_TOKENS, 1e12)),
        ],
    )


@claim(
    "C1.2-c",
    says="Training takes about 6e23 FLOPS.",
    registered=WRONG,
    sources=(KAPLAN, NARAYANAN, PALM),
)
def _work() -> Finding:
    model = presets.model("llama2-70b")
    plain = flops.training_flops(PARAMS, num_tokens=TOKENS)
    causal, full = (
        plain + flops.attention_flops(model, num_tokens=TOKENS, causal=causal) for causal in (True, False)
    )
    again = flops.training_flops(PARAMS, num_tokens=TOKENS, recompute=True)
    return Finding(
        f"6ΨD is {flops_text(plain)}; the printed figure is {percent_text(6e23 / plain - 1, digits=0)} too "
        f"high. Attention adds to {flops_text(causal)} (causal) or {flops_text(full)}. Full recomputation "
        f"makes the hardware do {flops_text(again)}. The printed figure belongs to 100 billion parameters. "
        "And FLOPS is a rate; an amount of work is FLOPs.",
        [
            Reading("6ΨD", near(plain, 6e23)),
            Reading("with causal attention", near(causal, 6e23)),
            Reading("with full attention", near(full, 6e23)),
            Reading("hardware FLOPs with full recomputation", near(again, 6e23)),
        ],
    )


@claim("C1.2-d", says="One card would take about 22,000 days.", registered=WRONG, sources=(ARITHMETIC,))
def _one_card() -> Finding:
    right, good = days(1), days(1, mfu=0.43)
    return Finding(
        f"It follows from the 6e23 above at 100 % of peak. Right is {right:,.0f} days ({right / 365.25:.1f} "
        f"years) at 100 %, which is out of reach, and {good:,.0f} days at 43 % MFU.",
        [
            Reading("6ΨD at peak", near(right, 22_000)),
            Reading("6ΨD at 43 % MFU, as Llama 2 70B reached", near(good, 22_000)),
        ],
    )


@claim(
    "C1.2-e",
    says="2,048 A100s are needed to finish in 11 days.",
    registered=WRONG,
    sources=(LLAMA_RUN.source, LLAMA2_RUN.source, MEGASCALE_256.source),
)
def _eleven_days() -> Finding:
    work = flops.training_flops(PARAMS, num_tokens=TOKENS)
    needed = flops.mfu_needed(work, seconds=11 * DAY_S, num_gpus=2048, peak_flops=A100.peak_flops)
    best = MEGASCALE_256.mfu_6nd
    took = {mfu: days(2048, mfu=mfu) for mfu in (1.0, best, 0.5, 0.45, 0.4)}
    cards = [
        math.ceil(flops.gpus_needed(work, seconds=11 * DAY_S, peak_flops=A100.peak_flops, mfu=mfu))
        for mfu in (0.45, 0.4)
    ]
    article = 6e23 / (2048 * A100.peak_flops * 11 * DAY_S)
    per_trillion = LLAMA2_70B_GPU_HOURS / 2048 / 24 / (LLAMA2_70B_TOKENS / TOKENS)
    return Finding(
        f"With the article's own 6e23 it would take {percent_text(article)} of peak, with the right work "
        f"{percent_text(needed)}. Whole runs on this card reached {percent_text(LLAMA2_RUN.mfu_6nd)} (Llama "
        f"2 70B) and {percent_text(LLAMA_RUN.mfu_6nd)} (LLaMA 65B) by 6ΨD, and the best benchmark that we "
        f"know {percent_text(best)}. At 50, 45 and 40 % it takes {took[0.5]:.1f}, {took[0.45]:.1f} and "
        f"{took[0.4]:.1f} days; for 11 days you need {cards[0]:,d} cards at 45 % or {cards[1]:,d} at 40 %. "
        f"Llama 2 70B took {per_trillion:.1f} days for each trillion tokens on that many cards.",
        [Reading(f"at {percent_text(mfu, digits=0)} of peak", near(took[mfu], 11)) for mfu in took],
    )
