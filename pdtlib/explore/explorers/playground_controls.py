"""The playground's controls, in the groups of a job's sections."""

from __future__ import annotations

from pdtlib.explore import sizes
from pdtlib.explore.controls import Choice, Control, Number, Slider, Toggle, scale
from pdtlib.explore.explorers import playground_job as jobs
from pdtlib.figures.words import say
from pdtlib.plan import presets
from pdtlib.plan.spec import SCHEDULES

_MODEL, _TRAIN, _SPLIT, _HARDWARE = (
    say(f"playground.group_{name}") for name in ("model", "train", "split", "hardware")
)
_MOE = ("model", (sizes.OWN,))
_WITH_CP = ("cp", tuple(str(degree) for degree in jobs.DEGREES["cp"] if degree > 1))

CONTROLS: tuple[Control, ...] = (
    Choice(
        name="model",
        label=say("size.label"),
        default="llama2-70b",
        group=_MODEL,
        options=(
            *((name, sizes.named_text(name)) for name in jobs.MODELS),
            (sizes.OWN, say("memory.own")),
        ),
        job_field="model.preset",
    ),
    *sizes.shape_controls(group=_MODEL),
    Number(
        name="experts",
        label=say("playground.experts"),
        default=0,
        minimum=0,
        maximum=1024,
        group=_MODEL,
        help=say("playground.experts_help"),
        when=_MOE,
        suggestions=("8", "64"),
        job_field="model.moe.experts",
    ),
    Number(
        name="top_k",
        label=say("playground.top_k"),
        default=2,
        minimum=1,
        maximum=64,
        group=_MODEL,
        when=_MOE,
        suggestions=("1", "8"),
        job_field="model.moe.top_k",
    ),
    Number(
        name="seq",
        label=say("memory.seq"),
        default=4096,
        minimum=16,
        maximum=2**24,
        group=_MODEL,
        suggestions=("2048", "8192", "32768", "131072"),
        job_field="model.seq",
    ),
    Number(
        name="global_batch",
        label=say("playground.global_batch"),
        default=128,
        minimum=1,
        maximum=1_000_000,
        group=_TRAIN,
        suggestions=("64", "512", "1024", "2048"),
        job_field="train.global_batch",
    ),
    Slider(
        name="micro_batch",
        label=say("memory.micro_batch"),
        default=1,
        group=_TRAIN,
        options=scale(jobs.MICRO_BATCHES),
        job_field="train.micro_batch",
    ),
    Choice(
        name="precision",
        label=say("playground.precision"),
        default="bf16",
        group=_TRAIN,
        options=scale(("bf16", "fp16", "fp8", "fp32")),
        job_field="train.precision",
    ),
    Choice(
        name="grad_precision",
        label=say("playground.grad_precision"),
        default="fp32",
        group=_TRAIN,
        options=tuple((name, say(f"playground.grads_{name}")) for name in ("same", "fp32")),
        job_field="train.grad_precision",
    ),
    Choice(
        name="recompute",
        label=say("memory.recompute"),
        default="none",
        group=_TRAIN,
        options=tuple((name, say(f"memory.recompute_{name}")) for name in ("none", "selective", "full")),
        job_field="train.recompute",
    ),
    Toggle(
        name="flash_attention",
        label=say("memory.flash"),
        default=True,
        group=_TRAIN,
        job_field="train.flash_attention",
    ),
    Number(
        name="dp",
        label=say("memory.dp"),
        default=2,
        minimum=1,
        maximum=100_000,
        group=_SPLIT,
        suggestions=("1", "4", "8", "16", "64"),
        job_field="parallel.dp",
    ),
    Choice(
        name="zero_stage",
        label=say("memory.zero"),
        default=1,
        group=_SPLIT,
        options=scale(range(4)),
        job_field="train.zero_stage",
    ),
    *(
        Slider(
            name=name,
            label=say(f"playground.{name}"),
            default={"tp": 8, "pp": 4}.get(name, 1),
            group=_SPLIT,
            options=scale(options),
            job_field=f"parallel.{name}",
        )
        for name, options in jobs.DEGREES.items()
    ),
    Toggle(
        name="sequence_parallel",
        label=say("memory.sp"),
        default=True,
        group=_SPLIT,
        job_field="train.sequence_parallel",
    ),
    Choice(
        name="schedule",
        label=say("player.schedule"),
        default="1f1b",
        group=_SPLIT,
        options=scale(SCHEDULES),
        job_field="parallel.schedule",
    ),
    Slider(
        name="vpp",
        label=say("player.chunks"),
        default=2,
        group=_SPLIT,
        options=scale(jobs.CHUNKS),
        when=("schedule", ("interleaved",)),
        job_field="parallel.vpp",
    ),
    Choice(
        name="context",
        label=say("playground.context"),
        default="ring",
        group=_SPLIT,
        options=scale(("ring", "ulysses")),
        when=_WITH_CP,
        job_field="parallel.context",
    ),
    Choice(
        name="cluster",
        label=say("planner.cluster"),
        default="dgx-h100",
        group=_HARDWARE,
        options=scale(tuple(presets.CLUSTERS)),
        job_field="hardware.cluster",
    ),
    Number(
        name="tokens",
        label=say("time.tokens"),
        default="2T",
        minimum=1e6,
        maximum=1e16,
        group=_HARDWARE,
        suggestions=("300B", "1T", "15T"),
    ),
    sizes.price_control(default=2.5, group=_HARDWARE),
)
