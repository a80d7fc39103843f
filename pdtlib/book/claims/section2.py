"""The article's section 2: data parallelism and ZeRO."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from pdtlib.book.claims import section1
from pdtlib.book.claims.judge import (
    ASSUMPTION,
    EXACT,
    IMPRECISE,
    WRONG,
    Finding,
    Reading,
    Register,
    prints_as,
)
from pdtlib.plan import params, presets
from pdtlib.plan.comm import zero_messages
from pdtlib.plan.sharding import shard_range
from pdtlib.plan.states import (
    ACCOUNTINGS,
    StateBytes,
    fits_from,
    largest_model,
    whole_and_sharded,
    zero_state_bytes,
)
from pdtlib.plan.units import GB

REGISTER = Register()
claim = REGISTER.claim

PARAMS, CARD = section1.PARAMS, section1.CARD
ARTICLE, USUAL = ACCOUNTINGS["no-master-12"], ACCOUNTINGS["zero-16"]
BOTH = (ARTICLE, USUAL)

DDP = "Li et al. (arXiv:2006.15704)"
ZERO_PAPER = "ZeRO (arXiv:1910.02054)"
ZERO_STATES = "ZeRO (arXiv:1910.02054), figure 1 and section 5"
ZERO_TRAFFIC = "ZeRO (arXiv:1910.02054), section 7"
DEEPSPEED = "DeepSpeed, source of its ZeRO settings"
RUN = "run while this page was built"


def states(stage: int, *, dp: int = 8, accounting: object = USUAL) -> StateBytes:
    """The 70B model's states on one of ``dp`` GPUs."""
    return zero_state_bytes(PARAMS, dp=dp, stage=stage, accounting=accounting)  # type: ignore[arg-type]


def total_gb(stage: int, *, dp: int = 8) -> tuple[float, float]:
    """GB on one GPU by the article's 12 bytes a parameter and by the usual 16."""
    article, usual = (states(stage, dp=dp, accounting=accounting).total / GB for accounting in BOTH)
    return article, usual


def listed_gb(values: Sequence[float]) -> str:
    """GB as text: "840, 350, 227.5 and 105"."""
    *first, last = (f"{value:,.1f}".removesuffix(".0") for value in values)
    return f"{', '.join(first)} and {last}"


def sent_gb(stage: int, micro_batches: int = 1) -> float:
    """GB that one of 8 GPUs sends in a step of the 70B model in bf16."""
    messages = zero_messages(PARAMS, dp=8, stage=stage, micro_batches=micro_batches)
    return sum(message.sent_bytes_per_rank for message in messages) / GB


def mean_of_means_weight(tokens: tuple[int, ...]) -> float:
    """Weight of a token of the shortest rank in a mean of means, over its right weight."""
    whole = Fraction(1, sum(tokens))
    alone = Fraction(1, len(tokens) * min(tokens))
    return float(alone / whole)


def sharded(stage: int) -> set[str]:
    """Which states are smaller on each of 8 GPUs than on one."""
    whole, cut = states(0), states(stage)
    return {name for name in ("params", "grads", "optimizer") if getattr(cut, name) < getattr(whole, name)}


@claim(
    "C2.1-a",
    says="Every GPU holds a full replica and processes other data.",
    registered=EXACT,
    sources=(DDP,),
)
def _replicas() -> Finding:
    alone, many = states(0, dp=1), states(0, dp=1024)
    return Finding(
        "The definition of data parallelism. In the memory model, too, each of 1,024 GPUs holds what one "
        f"holds alone: {many.total / GB:,.0f} GB.",
        [Reading("states of a replica do not depend on the number of replicas", alone == many)],
    )


@claim(
    "C2.1-b",
    says="Four GPUs take samples 0 to 32, 32 to 64, 64 to 96 and 96 to 128 of a batch.",
    registered=EXACT,
    sources=("arithmetic",),
)
def _slices() -> Finding:
    cut = [shard_range(128, 4, rank) for rank in range(4)]
    return Finding(
        "Half-open ranges of 32: together all 128 samples, none twice.",
        [Reading("half-open ranges", cut == [(0, 32), (32, 64), (64, 96), (96, 128)])],
    )


@claim(
    "C2.1-c", says="In the forward pass each GPU computes its loss alone.", registered=EXACT, sources=(DDP,)
)
def _forward_alone() -> Finding:
    phases = {message.phase for message in zero_messages(PARAMS, dp=4, stage=0)}
    return Finding(
        "Plain data parallelism sends nothing in the forward pass. Two things change that: batch "
        "normalisation over all GPUs, and a loss that compares samples of different GPUs.",
        [Reading("no message of the plan belongs to the forward pass", phases == {"grads"})],
    )


@claim(
    "C2.1-d",
    says="In the backward pass an all-reduce synchronises the gradients.",
    registered=ASSUMPTION,
    sources=(DDP, ZERO_TRAFFIC, RUN),
)
def _all_reduce() -> Finding:
    even, uneven = mean_of_means_weight((17, 17, 17, 17)), mean_of_means_weight((6, 13, 19, 30))
    return Finding(
        "It must average, and every rank must hold the same number of valid tokens. With 6, 13, 19 and 30 "
        f"tokens a mean of means gives a token of the first rank {uneven:.1f} times its right weight. Sum, "
        "and divide by all tokens.",
        [
            Reading("every rank holds as many tokens", even == 1),
            Reading("ranks hold different numbers of tokens", uneven == 1),
        ],
    )


@claim(
    "C2.1-e", says="Then every GPU updates its parameters in step.", registered=EXACT, sources=(DDP, "lab 02")
)
def _in_step() -> Finding:
    phases = [message.phase for message in zero_messages(PARAMS, dp=4, stage=0)]
    return Finding(
        "Equal gradients and equal optimizer state give equal updates, so no parameters are sent. It takes "
        "equal parameters at the start, which one broadcast ensures. Lab 02 compares the ranks' parameters.",
        [Reading("no message of a step carries parameters", "params" not in phases)],
    )


@claim(
    "C2.2-a",
    says="Plain data parallelism needs model, optimizer state and gradients on every GPU.",
    registered=EXACT,
    sources=(ZERO_PAPER,),
)
def _everything_everywhere() -> Finding:
    return Finding(
        "Yes, and activations, communication buffers and workspace besides.",
        [Reading("nothing is sharded at stage 0", sharded(0) == set())],
    )


@claim(
    "C2.2-b",
    says="For 70B that is 840 GB, which does not fit into 80 GB.",
    registered=ASSUMPTION,
    sources=(ZERO_PAPER,),
)
def _does_not_fit() -> Finding:
    article, usual = total_gb(0)
    return Finding(
        f"It fits under no counting: {article:,.0f} GB at 12 bytes a parameter, {usual:,.0f} GB at 16. The "
        "printed number is the one of section 1.1, without a master copy.",
        [
            Reading(
                "12 bytes a parameter, as in section 1.1", prints_as(article, 840) and article * GB > CARD
            ),
            Reading("16 bytes a parameter", prints_as(usual, 840) and usual * GB > CARD),
        ],
    )


@claim(
    "C2.3-a",
    says="ZeRO, DeepSpeed's Zero Redundancy Optimizer, gets past the memory limit by cutting up the state.",
    registered=EXACT,
    sources=(ZERO_PAPER,),
)
def _name() -> Finding:
    return Finding("So the paper introduces it; whether it gets past the limit is judged in C2.3-i.")


@claim(
    "C2.3-b",
    says="ZeRO-1 cuts the optimizer state: 1/N on each GPU.",
    registered=EXACT,
    sources=(ZERO_STATES,),
)
def _stage_1() -> Finding:
    return Finding(
        "The paper's first stage. Weights and gradients stay whole.",
        [Reading("the optimizer state, and it alone", sharded(1) == {"optimizer"})],
    )


@claim(
    "C2.3-c",
    says="70B with ZeRO-1 on 8 GPUs: 560/N, 70 GB on each.",
    registered=WRONG,
    sources=(ZERO_STATES,),
)
def _stage_1_total() -> Finding:
    article, usual = total_gb(1)
    whole, _ = whole_and_sharded(USUAL, 1)
    limit, at_8 = (largest_model(CARD, dp=dp, stage=1) / 1e9 for dp in (None, 8))
    shard = states(1, accounting=ARTICLE).optimizer / GB
    return Finding(
        f"{shard:.0f} GB is the shard of the optimizer state. Weights and gradients are whole on every GPU, "
        f"so it holds {article:.0f} GB at 12 bytes a parameter or {usual:.0f} GB at 16. However many GPUs "
        f"you take, {whole * PARAMS / GB:.0f} GB remain, so 70B never fits. The largest model that does has "
        f"{limit:.0f} billion parameters; {at_8:.1f} billion on 8.",
        [
            Reading("all that a GPU holds, 12 bytes a parameter", prints_as(article, 70)),
            Reading("all that a GPU holds, 16 bytes a parameter", prints_as(usual, 70)),
        ],
    )


@claim(
    "C2.3-d",
    says="ZeRO-2 cuts optimizer state and gradients.",
    registered=EXACT,
    sources=(ZERO_STATES,),
)
def _stage_2() -> Finding:
    return Finding(
        "The paper's second stage. Weights stay whole.",
        [Reading("optimizer state and gradients", sharded(2) == {"optimizer", "grads"})],
    )


@claim(
    "C2.3-e",
    says="70B with ZeRO-2 on 8 GPUs: (560 + 140)/N, 87.5 GB on each.",
    registered=WRONG,
    sources=(ZERO_STATES,),
)
def _stage_2_total() -> Finding:
    article, usual = total_gb(2)
    whole, _ = whole_and_sharded(USUAL, 2)
    limit, at_8 = (largest_model(CARD, dp=dp, stage=2) / 1e9 for dp in (None, 8))
    return Finding(
        f"Again only what is cut. With the whole weights it is {article:.1f} GB at 12 bytes a parameter or "
        f"{usual:.1f} GB at 16, and {whole * PARAMS / GB:.0f} GB however many GPUs you take. The largest "
        f"model that fits into 80 GB has {limit:.0f} billion parameters; {at_8:.1f} billion on 8 GPUs.",
        [
            Reading("all that a GPU holds, 12 bytes a parameter", prints_as(article, 87.5)),
            Reading("all that a GPU holds, 16 bytes a parameter", prints_as(usual, 87.5)),
        ],
    )


@claim(
    "C2.3-f",
    says="ZeRO-3 cuts the parameters too: each GPU keeps 1/N of everything.",
    registered=EXACT,
    sources=(ZERO_STATES, DEEPSPEED),
)
def _stage_3() -> Finding:
    return Finding(
        "The paper's third stage. Implementations leave small tensors whole (DeepSpeed: below 100,000 "
        "elements by default).",
        [
            Reading("all three states", sharded(3) == {"optimizer", "grads", "params"}),
            Reading("to one part in N", states(3).total * 8 == states(0).total),
        ],
    )


@claim(
    "C2.3-g",
    says="70B with ZeRO-3 on 8 GPUs: 840/N, 105 GB on each.",
    registered=ASSUMPTION,
    sources=(ZERO_STATES,),
)
def _stage_3_total() -> Finding:
    article, usual = total_gb(3)
    first = [fits_from(PARAMS, capacity_bytes=CARD, stage=3, accounting=accounting) for accounting in BOTH]
    room = [
        fits_from(PARAMS, capacity_bytes=CARD - 10 * GB, stage=3, accounting=accounting)
        for accounting in BOTH
    ]
    layer = params.layer_params(presets.model("llama2-70b"))
    return Finding(
        f"Right at 12 bytes a parameter; {usual:.0f} GB at 16. Neither fits into 80 GB, which the article "
        f"does not say. The states fit from {first[0]} GPUs (12 bytes) or {first[1]} (16), and from "
        f"{room[0]} or {room[1]} with 10 GB kept free. A gathered layer of Llama 2 70B, {layer / 1e9:.2f} "
        f"billion parameters, takes {2 * layer / GB:.1f} GB more while it computes.",
        [
            Reading("12 bytes a parameter, as in section 1.1", prints_as(article, 105)),
            Reading("16 bytes a parameter", prints_as(usual, 105)),
        ],
    )


@claim(
    "C2.3-h",
    says="(Implied by the three figures.) From ZeRO-1 to ZeRO-3 a GPU holds more and more: 70, 87.5, 105 GB.",
    registered=WRONG,
    sources=(ZERO_STATES,),
)
def _order() -> Finding:
    totals = [[total_gb(stage)[i] for stage in range(4)] for i in (0, 1)]
    listed = " and ".join(
        f"{listed_gb(values)} GB ({accounting.total} bytes)"
        for values, accounting in zip(totals, BOTH, strict=True)
    )
    return Finding(
        "The figures can't be compared: each counts only what is cut. What a GPU really holds falls from "
        f"plain data parallelism to ZeRO-3: {listed}.",
        [
            Reading(f"{accounting.total} bytes a parameter", values[1] < values[2] < values[3])
            for values, accounting in zip(totals, BOTH, strict=True)
        ],
    )


@claim(
    "C2.3-i",
    says="(Heading.) ZeRO breaks through the memory limit.",
    registered=IMPRECISE,
    sources=(ZERO_STATES,),
)
def _breakthrough() -> Finding:
    fits = {stage: fits_from(PARAMS, capacity_bytes=CARD, stage=stage) for stage in (1, 2, 3)}
    return Finding(
        f"For 70B on 80 GB cards only stage 3 does, from {fits[3]} cards at 16 bytes a parameter. Stages 1 "
        "and 2 need something besides: model parallelism, offloading, or larger cards.",
        [
            Reading("whatever the stage", all(fits.values())),
            Reading("stage 3 alone, on enough cards", fits[3] is not None, usual=False),
        ],
    )


@claim(
    "C2.3-j",
    says="In ZeRO-3 parameters are all-gathered on demand in the forward and in the backward pass.",
    registered=EXACT,
    sources=(ZERO_TRAFFIC, DEEPSPEED, "lab 02"),
)
def _gathers() -> Finding:
    gathers = [m.phase for m in zero_messages(PARAMS, dp=8, stage=3) if m.collective == "all_gather"]
    once, many = ([sent_gb(stage, m) for stage in range(4)] for m in (1, 8))
    return Finding(
        "Yes. The article gives no traffic. In one step on 8 GPUs a 70B model in bf16 sends "
        f"{listed_gb(once)} GB from each GPU for stages 0 to 3. With 8 micro-batches it is "
        f"{listed_gb(many[1:])} GB for stages 1 to 3, because stages 2 and 3 communicate in every "
        "micro-batch.",
        [Reading("one gather in each pass", gathers == ["forward", "backward"])],
    )
