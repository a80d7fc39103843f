"""The article's section 7.1: its table of configurations, row by row, against targets, memory and plans."""

from __future__ import annotations

from functools import cache

from pdtlib.book.claims.judge import (
    ASSUMPTION,
    EXACT,
    IMPRECISE,
    WRONG,
    Finding,
    Reading,
    Register,
)
from pdtlib.plan.planner.article import TABLE, Check, check_row
from pdtlib.plan.presets import GPUS
from pdtlib.plan.states import zero_state_bytes
from pdtlib.plan.units import GB, percent_text

REGISTER = Register()
claim = REGISTER.claim

SMALL_CARD = 24 * GB
LONG_DAYS = 90
"""A pre-training run that takes longer than that is given more GPUs."""

A100 = GPUS["A100-SXM4-80"].memory_bytes
ARITHMETIC = "arithmetic"
DEEPSPEED = "DeepSpeed 0.19, runtime/pipe/engine.py"
MEGATRON = "Megatron-LM, training/arguments.py and its parallelism guide"
LLAMA = "Llama 3 (arXiv:2407.21783), section 3.3.2"
TITAN = "torchtitan, distributed/fsdp.py"
PLANNED = "planned while this page was built"

checked = cache(check_row)


def days(check: Check) -> str:
    return f"{check.days:.0f}"


@claim(
    "C7.1-a",
    says="7B on 8 GPUs: TP 1, PP 1, DP 8, ZeRO-2.",
    registered=ASSUMPTION,
    sources=(ARITHMETIC, PLANNED),
)
def _seven() -> Finding:
    found = checked(TABLE[0])
    return Finding(
        f"States take {found.state_bytes / GB:.2f} GB a GPU: that fits an A100, not a card of 24 GB. For "
        f"fine-tuning it is a good layout, and the planner's. 10¹² tokens would take {days(found)} days.",
        [
            Reading("its states fit into 80 GB", found.state_bytes < A100),
            Reading("and into 24 GB", found.state_bytes < SMALL_CARD),
            Reading("for pre-training on 10¹² tokens", found.days < LONG_DAYS),
        ],
    )


@claim(
    "C7.1-b",
    says="13B on 16 GPUs: TP 2, PP 1, DP 8, ZeRO-2.",
    registered=ASSUMPTION,
    sources=(ARITHMETIC, PLANNED),
)
def _thirteen() -> Finding:
    found = checked(TABLE[1])
    uncut = zero_state_bytes(13e9, dp=16, stage=2).total
    return Finding(
        f"It fits with {found.state_bytes / GB:.1f} GB of states. So does ZeRO-2 on all 16 ranks without "
        f"tensor parallelism, {uncut / GB:.1f} GB. 10¹² tokens take {days(found)} days.",
        [
            Reading("its states fit into 80 GB", found.state_bytes < A100),
            Reading("they would not without tensor parallelism", uncut > A100),
        ],
    )


def _piped(found: Check) -> list[Reading]:
    """A row with a pipeline and ZeRO-3: who can run it."""
    return [
        Reading("in DeepSpeed, whose ZeRO is meant", "deepspeed" not in found.refused),
        Reading("in Megatron-LM", "megatron" not in found.refused),
    ]


def _behind(found: Check) -> str:
    if found.loses is None or found.best is None or found.own is None:
        return "No layout of it fits."
    chosen = (
        "With ZeRO-1, and chunks, micro-batch and recomputation in its favour "
        f"({found.own.job.parallel.vpp} chunks a stage),"
    )
    if found.own.job == found.best.job:
        return f"{chosen} it is the planner's own layout for these GPUs."
    best = found.best.job.parallel
    return (
        f"{chosen} its step is predicted to take {percent_text(found.loses, digits=0)} longer than the best "
        f"plan's on these GPUs (tp {best.tp}, pp {best.pp}, dp {best.dp})."
    )


@claim(
    "C7.1-c",
    says="70B on 128 GPUs: TP 8, PP 4, DP 4, ZeRO-3.",
    registered=WRONG,
    sources=(DEEPSPEED, MEGATRON, TITAN, PLANNED),
)
def _seventy() -> Finding:
    found = checked(TABLE[2])
    reason = found.refused["deepspeed"][0].message
    return Finding(
        f"{found.layers_per_stage:g} layers a stage and {found.state_bytes / GB:.2f} GB of states are "
        f"right. But a pipeline and ZeRO-3 do not go together: {reason}. Megatron-LM refuses it, too. "
        "torchtitan can run it, with FSDP2 and a pipeline. ZeRO-1 takes "
        f"{found.state_bytes_zero_1 / GB:.1f} GB. {_behind(found)}",
        _piped(found),
    )


@claim(
    "C7.1-d",
    says="175B on 512 GPUs: TP 8, PP 8, DP 8, ZeRO-3.",
    registered=WRONG,
    sources=(DEEPSPEED, MEGATRON, PLANNED),
)
def _gpt3() -> Finding:
    found = checked(TABLE[3])
    return Finding(
        f"{found.layers_per_stage:g} layers a stage, {found.state_bytes / GB:.1f} GB. The same two do not go "
        f"together. ZeRO-1 takes {found.state_bytes_zero_1 / GB:.1f} GB. {_behind(found)}",
        _piped(found),
    )


@claim(
    "C7.1-e",
    says="530B on 1,024 GPUs: TP 8, PP 16, DP 8, ZeRO-3.",
    registered=WRONG,
    sources=(DEEPSPEED, MEGATRON, "MT-NLG (arXiv:2201.11990)", PLANNED),
)
def _mt_nlg() -> Finding:
    found = checked(TABLE[4])
    return Finding(
        f"The model of that size has 105 layers, {found.layers_per_stage:.2f} for each of 16 stages; its "
        "authors used 35 stages of 3. ZeRO-3 and a pipeline do not go together here, either. ZeRO-1 takes "
        f"{found.state_bytes_zero_1 / GB:.1f} GB. {_behind(found)}",
        [*_piped(found), Reading("whole layers a stage", found.layers_per_stage.is_integer())],
    )


@claim(
    "C7.1-f",
    says="In every row GPUs = TP × PP × DP.",
    registered=EXACT,
    sources=(ARITHMETIC,),
)
def _products() -> Finding:
    numbers = ", ".join(f"{row.gpus:,}" for row in TABLE)
    return Finding(f"{numbers}.", [Reading("the product", all(r.gpus == r.tp * r.pp * r.dp for r in TABLE))])


@claim(
    "C7.1-g",
    says="(Implied.) From 70B on, ZeRO-3 is the stage to use.",
    registered=WRONG,
    sources=(TITAN, LLAMA, "DeepSeek-V3 (arXiv:2412.19437), section 3.2", DEEPSPEED),
)
def _stage_3() -> Finding:
    large = [checked(row) for row in TABLE[2:]]
    amounts = ", ".join(f"{found.state_bytes_zero_1 / GB:.1f}" for found in large)
    return Finding(
        f"Once tensor and pipeline parallelism have divided the model, ZeRO-1 is enough: {amounts} GB a GPU "
        "for the three rows. ZeRO-3 would gather a stage's weights in every pass of every micro-batch. Where "
        "there is no pipeline it is a good choice, and the planner often takes it.",
        [
            Reading("since states do not fit otherwise", any(f.state_bytes_zero_1 > A100 for f in large)),
            Reading("in DeepSpeed, with the rows' own pipelines", not any(f.refused for f in large)),
        ],
    )


@claim(
    "C7.1-h",
    says="(Implied.) The table is a general recommendation.",
    registered=IMPRECISE,
    sources=(MEGATRON, PLANNED),
)
def _general() -> Finding:
    found = [checked(row) for row in TABLE]
    return Finding(
        "It names no sequence length, batch, hardware or number of tokens, and all of them decide. On the "
        f"GPUs listed, 10¹² tokens at 40 % MFU take {', '.join(map(days, found))} days. Megatron-LM's guide "
        "gives Llama 3 70B 64 GPUs with TP 4, PP 4, CP 2, and 405B 1,024 with TP 8, PP 8, CP 2.",
        [
            Reading("for pre-training in three months", all(f.days < LONG_DAYS for f in found)),
            Reading("as layouts whose states fit", all(f.state_bytes < A100 for f in found), usual=False),
        ],
    )
