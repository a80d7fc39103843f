"""The article's sections 4.3 and 4.4: 1F1B and interleaving, simulated while the page is made."""

from __future__ import annotations

from itertools import pairwise

from pdtlib.book.claims.judge import ASSUMPTION, EXACT, WRONG, Finding, Reading, Register
from pdtlib.book.claims.section4 import (
    LAYERS,
    MEGATRON,
    SIMULATED,
    SIZES,
    STAGES,
    UNIT,
    USUAL,
    messages,
    run,
    table,
)
from pdtlib.plan.chunks import split_layers
from pdtlib.plan.schedule import Schedule, build, simulate
from pdtlib.plan.units import percent_text

REGISTER = Register()
claim = REGISTER.claim

PIPEDREAM = "PipeDream (arXiv:1806.03377)"
KORTHIKANTI = "Korthikanti et al. (arXiv:2205.05198), section 4.2.3"


def warmups(schedule: Schedule) -> list[int]:
    """Forwards of each stage before its first backward."""
    return [[act.op for act in program].index("B") for program in schedule.programs]


def drains(schedule: Schedule) -> list[int]:
    """Backwards of each stage behind its last forward."""
    return [[act.op for act in program][::-1].index("F") for program in schedule.programs]


def order(schedule: Schedule, stage: int) -> str:
    """A stage's actions, micro-batches counted from 1 as the article counts."""
    return " ".join(f"{act.op}{act.micro_batch + 1}" for act in schedule.programs[stage])


def crossings(chunks: int) -> int:
    """How often a micro-batch changes the GPU on its way forwards."""
    return sum(kind == "SF" for _, _, kind in messages("interleaved", chunks=chunks)) // 8


def held_by(chunks: int) -> list[list[tuple[int, int]]]:
    """First and last layer of each GPU's chunks, counted from 1."""
    layout = table("interleaved", chunks=chunks).layout
    runs = split_layers(LAYERS, layout.length)
    return [
        [
            (runs[layout.position(rank, chunk)].start + 1, runs[layout.position(rank, chunk)].stop)
            for chunk in range(chunks)
        ]
        for rank in range(STAGES)
    ]


@claim(
    "C4.3-a",
    says="1F1B means one forward, one backward.",
    registered=EXACT,
    sources=(PIPEDREAM, f"{MEGATRON}.1"),
)
def _name() -> Finding:
    steady = []
    for stage, program in enumerate(table("1f1b").programs):
        warmup = STAGES - 1 - stage
        steady += [a.op + b.op for a, b in pairwise(program[warmup : len(program) - warmup])]
    return Finding(
        "In its steady state a stage alternates. PipeDream's original keeps several versions of the "
        "weights and "
        "updates without waiting; what is called 1F1B today waits for all micro-batches (PipeDream-Flush).",
        [Reading("between filling and draining, in turn", set(steady) == {"FB", "BF"})],
    )


@claim(
    "C4.3-b",
    says="1F1B makes the bubble smaller.",
    registered=WRONG,
    sources=(f"{MEGATRON}.1", SIMULATED),
)
def _no_smaller() -> Finding:
    pairs = [
        [simulate(build(name, stages=p, microbatches=m), USUAL) for name in ("gpipe", "1f1b")]
        for p, m in SIZES
    ]
    gpipe, ours = run("gpipe"), run("1f1b")
    return Finding(
        f"It has GPipe's bubble: with 4 stages and 8 micro-batches both take {ours.makespan:g} units and "
        "idle "
        f"{percent_text(gpipe.bubble_fraction)}; the same for all {len(SIZES)} sizes tried. It helps only "
        "indirectly: less memory allows more micro-batches.",
        [
            Reading(
                "a smaller share of the time", any(b.bubble_fraction < a.bubble_fraction for a, b in pairs)
            ),
            Reading("a shorter step", any(b.makespan < a.makespan for a, b in pairs)),
        ],
    )


@claim(
    "C4.3-c",
    says="1F1B needs less memory.",
    registered=EXACT,
    sources=(f"{MEGATRON}.1", SIMULATED),
)
def _memory() -> Finding:
    gpipe, ours = run("gpipe").peak_in_flight, run("1f1b").peak_in_flight
    listed = [", ".join(f"{peak:g}" for peak in peaks) for peaks in (gpipe, ours)]
    return Finding(
        f"Activations of micro-batches, stage by stage, for 4 stages and 8 micro-batches: GPipe {listed[0]}, "
        f"1F1B {listed[1]}.",
        [
            Reading("on every stage", all(b < a for a, b in zip(gpipe, ours, strict=True))),
            Reading("stage i holds min(p − i, m)", ours == [min(STAGES - i, 8) for i in range(STAGES)]),
        ],
    )


@claim(
    "C4.3-d",
    says="Three phases: fill, alternate, drain.",
    registered=EXACT,
    sources=("Megatron-LM, pipeline_parallel/schedules.py",),
)
def _phases() -> Finding:
    ours = table("1f1b")
    expected = [STAGES - 1 - stage for stage in range(STAGES)]
    return Finding(
        "Stage i runs p − 1 − i forwards, then pairs, then p − 1 − i backwards.",
        [
            Reading("forwards to fill", [w - 1 for w in warmups(ours)] == expected),
            Reading("backwards to drain", [d - 1 for d in drains(ours)] == expected),
        ],
    )


@claim(
    "C4.3-e",
    says="Phase 1: every GPU runs F1 F2 F3 F4.",
    registered=WRONG,
    sources=("Megatron-LM, pipeline_parallel/schedules.py", "torch 2.13, Schedule1F1B"),
)
def _fill() -> Finding:
    first = warmups(table("1f1b", 7))
    return Finding(
        "The filling differs from stage to stage. Forwards before the first backward: "
        f"{', '.join(map(str, first))}. (Megatron-LM counts one less, since the last of them is half of the "
        "first pair.)",
        [
            Reading("forwards before the first backward", first == [STAGES] * STAGES),
            Reading("counted as Megatron-LM does", [w - 1 for w in first] == [STAGES] * STAGES),
        ],
    )


@claim(
    "C4.3-f",
    says="Phase 2: GPU 0 and GPU 1 both run F5 B1 F6 B2 F7 B3.",
    registered=WRONG,
    sources=(SIMULATED, "DeepSpeed, runtime/pipe/schedule.py"),
)
def _steady() -> Finding:
    ours, printed = run("1f1b", 7, UNIT), run("article", 7, UNIT)
    return Finding(
        f"GPU 0 runs {order(ours.schedule, 0)}; GPU 1 {order(ours.schedule, 1)}. The printed order puts F5 "
        f"before B1. Run as it stands, with backwards as long as forwards, it takes {printed.makespan:g} "
        f"units instead of {ours.makespan:g} and idles {percent_text(printed.bubble_fraction, digits=2)} "
        f"instead of {percent_text(ours.bubble_fraction, digits=0)}, and every stage holds "
        f"{max(printed.peak_in_flight):g} micro-batches.",
        [
            Reading("GPU 0's order", ours.schedule.programs[0] == printed.schedule.programs[0]),
            Reading("GPU 1's order", ours.schedule.programs[1] == printed.schedule.programs[1]),
            Reading("another order, but as fast", printed.makespan <= ours.makespan),
        ],
    )


@claim(
    "C4.3-g",
    says="Phase 3: GPU 0 drains B4 B5 B6 B7.",
    registered=WRONG,
    sources=("DeepSpeed, runtime/pipe/schedule.py", SIMULATED),
)
def _drain() -> Finding:
    ours = table("1f1b", 7)
    left = [count - 1 for count in drains(ours)]
    last = " ".join(order(ours, 0).split()[-left[0] :])
    return Finding(
        f"It drains {left[0]}: {last}. B4 is the partner of F7. Stages drain {', '.join(map(str, left))}.",
        [
            Reading("four backwards are left", left[0] == 4),
            Reading("they are B4 to B7", last == "B4 B5 B6 B7"),
        ],
    )


@claim(
    "C4.4-a",
    says="Interleaving cuts each GPU's layers into several pieces.",
    registered=EXACT,
    sources=(f"{MEGATRON}.2",),
)
def _pieces() -> Finding:
    return Finding(
        "They are called chunks, or virtual stages.",
        [Reading("two chunks on each of 4 GPUs", table("interleaved", chunks=2).layout.chunks == 2)],
    )


@claim(
    "C4.4-b",
    says="Without it: GPU 0 has layers 1–12, GPU 1 13–24, GPU 2 25–36, GPU 3 37–48.",
    registered=EXACT,
    sources=("arithmetic",),
)
def _plain() -> Finding:
    return Finding("As in C4.1-b.", [Reading("the plan's own rule", held_by(1)[0] == [(1, 12)])])


@claim(
    "C4.4-c",
    says="With it: GPU 0 has layers 1–6 and 25–30, GPU 1 7–12 and 31–36, and so on.",
    registered=EXACT,
    sources=(f"{MEGATRON}.2",),
)
def _interleaved() -> Finding:
    held = held_by(2)
    rest = "; ".join(
        f"GPU {rank}: {' and '.join(f'{a}–{b}' for a, b in held[rank])}" for rank in range(2, STAGES)
    )
    return Finding(
        f"And {rest}.",
        [
            Reading("GPU 0", held[0] == [(1, 6), (25, 30)]),
            Reading("GPU 1", held[1] == [(7, 12), (31, 36)]),
        ],
    )


@claim("C4.4-d", says="The pipeline gets twice as many stages.", registered=EXACT, sources=(f"{MEGATRON}.2",))
def _twice() -> Finding:
    lengths = [table("interleaved", chunks=chunks).layout.length for chunks in (1, 2)]
    return Finding(
        f"{lengths[1]} virtual stages on {STAGES} GPUs.",
        [Reading("a micro-batch passes twice as many", lengths[1] == 2 * lengths[0])],
    )


@claim(
    "C4.4-e",
    says="The bubble gets smaller.",
    registered=EXACT,
    sources=(f"{MEGATRON}.2", SIMULATED),
)
def _smaller() -> Finding:
    runs = [run("interleaved", chunks=chunks) for chunks in (1, 2, 3)]
    shares = [timeline.bubble_fraction for timeline in runs]
    idle = [timeline.makespan - max(timeline.busy) for timeline in runs]
    return Finding(
        f"The idle time is divided by the chunks; the share goes from {percent_text(shares[0])} to "
        f"{percent_text(shares[1])} with two and {percent_text(shares[2])} with three.",
        [
            Reading("share of the time", shares == sorted(shares, reverse=True) and shares[1] < shares[0]),
            Reading("idle time, divided by the chunks", abs(idle[0] - 2 * idle[1]) < 1e-9),
        ],
    )


@claim(
    "C4.4-f",
    says="The cost: twice as many messages.",
    registered=ASSUMPTION,
    sources=(f"{MEGATRON}.2", KORTHIKANTI, SIMULATED),
)
def _twice_the_messages() -> Finding:
    middle = [sum(a == 1 for a, _, _ in messages("interleaved", chunks=chunks)) for chunks in (1, 2)]
    crossed = [crossings(chunks) for chunks in (1, 2)]
    peaks = [timeline.peak_in_flight[0] for timeline in (run("1f1b"), run("interleaved", chunks=2))]
    return Finding(
        f"A GPU inside the pipeline sends twice as often. A micro-batch crosses {crossed[1]} boundaries "
        "instead "
        f"of {crossed[0]}, since it goes round twice. The article leaves out the other cost: the first stage "
        f"holds {peaks[1]:g} micro-batches instead of {peaks[0]:g}.",
        [
            Reading("messages of a GPU inside the pipeline", middle[1] == 2 * middle[0]),
            Reading("boundaries that a micro-batch crosses", crossed[1] == 2 * crossed[0]),
        ],
    )
