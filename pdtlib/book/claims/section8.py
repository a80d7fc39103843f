"""The article's section 8: which figures tell whether training is efficient, and where it draws lines."""

from __future__ import annotations

from pdtlib.book.claims.judge import (
    ASSUMPTION,
    EXACT,
    IMPRECISE,
    WRONG,
    Finding,
    Reading,
    Register,
)
from pdtlib.book.claims.published import (
    LLAMA2_RUN,
    LLAMA_RUN,
    MEGASCALE_256,
    MEGASCALE_3072,
    TORCHTITAN_8B,
    UTILISATIONS,
    Printed,
)
from pdtlib.book.claims.section3 import NETWORK, NVLINK_MEASURED
from pdtlib.book.claims.section3 import shares as tensor_parallel_shares
from pdtlib.plan import flops, presets
from pdtlib.plan.efficiency import (
    ARTICLE_BANDS,
    best_share,
    kernels_needed,
    mfu_bound,
    micro_batches_needed,
)
from pdtlib.plan.overlap import Overlap, bucket_timeline
from pdtlib.plan.schedule import Costs, build, simulate
from pdtlib.plan.units import percent_text

REGISTER = Register()
claim = REGISTER.claim

EXCELLENT, ACCEPTABLE = ARTICLE_BANDS["excellent"], ARTICLE_BANDS["acceptable"]
A100 = presets.GPUS["A100-SXM4-80"]
PALM = "PaLM (arXiv:2204.02311), section 4.1 and appendix B"
KORTHIKANTI = "Korthikanti et al. (arXiv:2205.05198), table 5"
GPIPE = "GPipe (arXiv:1811.06965), section 2.3"
LLAMA3 = "Llama 3 (arXiv:2407.21783), table 4"
MEASURED_MATMUL = "ml-engineering, table of measured matrix products"


def printed(gpu: str, *, longest: int = 10**9) -> list[Printed]:
    """Printed utilisations on a kind of GPU, with sequences of at most ``longest`` tokens."""
    return [run for run in UTILISATIONS if run.gpu == gpu and run.seq <= longest]


def told(runs: list[Printed]) -> str:
    return ", ".join(f"{run.run} {percent_text(run.mfu)}" for run in runs)


@claim(
    "C8-a",
    says="MFU is the actual FLOPS over the peak FLOPS.",
    registered=IMPRECISE,
    sources=(PALM, KORTHIKANTI),
)
def _mfu() -> Finding:
    both = [run for run in UTILISATIONS if run.hfu is not None]
    model = presets.model("mt-nlg-530b")
    work = flops.model_flops_per_token(model)
    executed = {name: flops.hardware_flops_per_token(model, recompute=name) for name in ("selective", "full")}
    return Finding(
        "MFU counts the FLOPs that the model needs, whatever is executed. What is executed, recomputation "
        "included, over peak is HFU. "
        + "; ".join(
            f"{run.run}: {percent_text(run.mfu)} MFU, {percent_text(run.hfu or 0)} HFU" for run in both
        )
        + f". With full recomputation a 530B model executes {percent_text(executed['full'] / work - 1)} more "
        "than it needs.",
        [
            Reading("what is executed, with selective recomputation", executed["selective"] == work),
            Reading("what is executed, with full recomputation", executed["full"] == work),
            Reading(
                "what the model needs, which 'actual' does not say",
                flops.hardware_flops_per_token(model, recompute="none") == work,
                usual=False,
            ),
        ],
    )


@claim(
    "C8-b",
    says="MFU above 50 % is excellent.",
    registered=ASSUMPTION,
    sources=(KORTHIKANTI, "MegaScale (arXiv:2402.15627)", LLAMA3),
)
def _excellent() -> Finding:
    ampere, hopper = printed("A100"), printed("H100")
    counted = {run.name: run.mfu_with_attention for run in (MEGASCALE_3072, MEGASCALE_256)}
    timed = ", ".join(f"{name} {percent_text(mfu)}" for name, mfu in counted.items())
    return Finding(
        f"On A100s in 16 bit the best published runs pass it: {told(ampere)}; by the time of a step, "
        f"attention counted, {timed}. On H100s, whose arithmetic grew faster than their memory and network, "
        f"those we quote do not: {told(hopper)}.",
        [
            Reading(
                "A100, 16 bit",
                max(*counted.values(), *(run.mfu for run in ampere)) > EXCELLENT.mfu,
            ),
            Reading("H100, 16 bit", max(run.mfu for run in hopper) > EXCELLENT.mfu),
        ],
    )


@claim(
    "C8-c",
    says="MFU from 40 to 50 % is acceptable.",
    registered=ASSUMPTION,
    sources=(LLAMA2_RUN.source, LLAMA_RUN.source, PALM, LLAMA3),
)
def _acceptable() -> Finding:
    whole = {
        "Llama 2 70B": LLAMA2_RUN.mfu_with_attention,
        "LLaMA 65B": LLAMA_RUN.mfu_with_attention,
        **{run.run: run.mfu for run in UTILISATIONS if run.run.startswith(("Llama 3", "PaLM"))},
    }
    short = {name: mfu for name, mfu in whole.items() if "long" not in name}

    def inside(mfu: float) -> bool:
        return ACCEPTABLE.mfu <= mfu <= EXCELLENT.mfu

    return Finding(
        "Most large runs are here: "
        + ", ".join(f"{name} {percent_text(mfu)}" for name, mfu in short.items())
        + ". So 'acceptable' undersells it: it is what the best teams reach over weeks. With sequences of "
        f"131,072 tokens Llama 3 is below, at {percent_text(whole['Llama 3 405B, long sequences'])}.",
        [
            Reading("large dense models, sequences up to 8,192", all(map(inside, short.values()))),
            Reading("long sequences too", all(map(inside, whole.values()))),
        ],
    )


@claim(
    "C8-d",
    says="MFU below 40 % needs optimisation.",
    registered=IMPRECISE,
    sources=(LLAMA3, "torchtitan, benchmarks of December 2024", "PaLM, table 3"),
)
def _needs_work() -> Finding:
    long = next(run for run in UTILISATIONS if run.seq > 100_000)
    titan = TORCHTITAN_8B.mfu_with_attention
    return Finding(
        f"Tuned runs lie below: {long.run} {percent_text(long.mfu)}; torchtitan's Llama 3.1 8B on 8 H100s "
        f"{percent_text(titan)}; on older chips {told(printed('TPU v3') + printed('V100'))}. In fp8 both "
        "numerator and denominator change, and with experts the useful work shrinks faster than the rest. "
        "Without GPU, precision and sequence length no such line can be drawn.",
        [
            Reading("any tuned run", long.mfu >= ACCEPTABLE.mfu and titan >= ACCEPTABLE.mfu),
            Reading("H100, 8B, sharded data parallelism", titan >= ACCEPTABLE.mfu),
            Reading(
                "A100, 16 bit, sequences of 2,048 tokens, dense",
                all(run.mfu >= ACCEPTABLE.mfu for run in printed("A100", longest=2048)),
                usual=False,
            ),
        ],
    )


@claim(
    "C8-e",
    says="The communication share is communication time over training time.",
    registered=IMPRECISE,
    sources=("Megatron-LM, README", "computed here"),
)
def _communication() -> Finding:
    line = overlapping()
    busy, exposed = line.communication_s / line.end_s, line.exposed_s / line.end_s
    return Finding(
        "Only exposed time costs anything: time in which a GPU waits. Gradients that travel during the "
        f"backward pass may keep the link busy for {percent_text(busy)} of it while the GPU waits for "
        f"{percent_text(exposed)}.",
        [
            Reading("time in which something travels", abs(busy - exposed) < 0.05),
            Reading("sum of the times of communication kernels", abs(busy - exposed) < 0.05),
            Reading("exposed time", exposed == (line.end_s - line.backward_s) / line.end_s, usual=False),
        ],
    )


def overlapping() -> Overlap:
    """Gradients of 1 GB in buckets of 25 MB, most of which travel during the backward pass."""
    return bucket_timeline(
        [10_000_000] * 100, limit_bytes=25_000_000, backward_s=0.2, dp=8, bytes_per_s=15e9, latency_s=1e-5
    )


@claim(
    "C8-f",
    says="A communication share below 20 % is excellent, 20 to 35 % acceptable, above 35 % poor.",
    registered=IMPRECISE,
    sources=("no source is known; arithmetic",),
)
def _communication_bands() -> Finding:
    _, _, fast = tensor_parallel_shares(NVLINK_MEASURED)
    _, _, slow = tensor_parallel_shares(NETWORK)
    hidden = overlapping()
    harmless = hidden.communication_s / hidden.end_s > ACCEPTABLE.communication
    return Finding(
        "A rule of thumb that nobody has published, and sensible only for exposed time. There it tells apart "
        f"what it should: tensor parallelism of 70B over 8 A100s waits {percent_text(fast)} of a step over "
        f"NVLink and {percent_text(slow)} over a 200 Gbit/s network. Of all communication it does not: "
        "gradients that are hidden can exceed 35 % and cost nothing.",
        [
            Reading("of all communication time", not harmless),
            Reading(
                "of exposed time",
                fast < EXCELLENT.communication and slow > ACCEPTABLE.communication,
                usual=False,
            ),
        ],
    )


@claim(
    "C8-g",
    says="The bubble share is idle time over total time.",
    registered=EXACT,
    sources=(GPIPE,),
)
def _bubble() -> Finding:
    costs = Costs(forward=1, backward_input=1, backward_weight=1)
    timeline = simulate(build("1f1b", stages=4, microbatches=8), costs)
    idle = 1 - 8 * 3 / timeline.makespan
    return Finding(
        f"The definition of section 4's formula: 3 of 11 for 4 stages and 8 micro-batches, "
        f"{percent_text(timeline.bubble_fraction)}. In a trace, measure it on the ranks of a pipeline, and "
        "count waits for other stages only: waits for gradients are communication.",
        [Reading("stages that wait for each other", abs(idle - 3 / 11) < 1e-12)],
    )


@claim(
    "C8-h",
    says="A bubble below 10 % is excellent, 10 to 20 % acceptable, above 20 % poor.",
    registered=ASSUMPTION,
    sources=(GPIPE, "arithmetic"),
)
def _bubble_bands() -> Finding:
    fewest = {
        stages: [micro_batches_needed(band.bubble, stages=stages) for band in (EXCELLENT, ACCEPTABLE)]
        for stages in (4, 8, 16)
    }
    told_counts = ", ".join(f"p = {p}: {a} and {b}" for p, (a, b) in fewest.items())
    at_4p = {p: (p - 1) / (4 * p + p - 1) for p in fewest}
    return Finding(
        "A rule of thumb. It asks for m ≥ 9(p − 1)/v and m ≥ 4(p − 1)/v micro-batches "
        f"({told_counts}). GPipe's authors call the bubble negligible from m = 4p on, where it is "
        f"{percent_text(at_4p[4])} to {percent_text(at_4p[16])}: acceptable by this scale. Where the global "
        "batch leaves fewer micro-batches, a larger bubble can be the best that there is.",
        [
            Reading(
                "where micro-batches can be had", all(share <= ACCEPTABLE.bubble for share in at_4p.values())
            ),
            Reading("16 stages, and 16 micro-batches left", ACCEPTABLE.bubble >= 15 / 31),
        ],
    )


@claim(
    "C8-i",
    says="(Implied.) The three scales can be used together.",
    registered=WRONG,
    sources=("computed here", MEASURED_MATMUL),
)
def _together() -> Finding:
    best = best_share(A100.name) or 1.0
    rows = {}
    for name, band in ARTICLE_BANDS.items():
        shares = {"communication": band.communication, "bubble": band.bubble}
        rows[name] = (mfu_bound(**shares, kernels=best), kernels_needed(band.mfu, **shares))
    bound, needed = rows["acceptable"]
    return Finding(
        f"Shares of one step add up. At the edge of both 'acceptable' bands {percent_text(0.45, digits=0)} "
        f"of the step is left, and the best matrix product that our source measured on an A100 reaches "
        f"{percent_text(best)} of peak: at most {percent_text(bound)} MFU, below the 40 % that is called "
        f"acceptable. It would need kernels at {percent_text(needed, digits=0)} of peak. At the edge of "
        f"both 'excellent' bands 50 % MFU needs kernels at {percent_text(rows['excellent'][1], digits=0)}: "
        "hard, but possible.",
        [
            Reading("acceptable shares allow an acceptable MFU, A100", bound >= ACCEPTABLE.mfu),
            Reading("the same with kernels as good as measured", needed <= best),
        ],
    )
