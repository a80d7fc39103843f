"""The article's sections 4.1 and 4.2: pipelines and their bubble, simulated while the page is made."""

from __future__ import annotations

from collections.abc import Iterator

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
from pdtlib.plan.chunks import split_layers
from pdtlib.plan.schedule import Costs, Schedule, Timeline, build, lower, simulate
from pdtlib.plan.units import percent_text

REGISTER = Register()
claim = REGISTER.claim

STAGES, LAYERS = 4, 48
UNIT = Costs(forward=1, backward_input=1, backward_weight=0)
USUAL = Costs(forward=1, backward_input=2, backward_weight=0)
FORWARDS_ONLY = Costs(forward=1, backward_input=0, backward_weight=0)
SIZES = tuple((p, m) for p in (2, 3, 4, 8) for m in (1, 2, 4, 8, 32, 64))

GPIPE = "GPipe (arXiv:1811.06965)"
MEGATRON = "Narayanan et al. (arXiv:2104.04473), section 2.2"
SIMULATED = "simulated while this page was built"


def table(name: str, microbatches: int = 8, chunks: int | None = None) -> Schedule:
    return build(name, stages=STAGES, microbatches=microbatches, chunks=chunks)


def run(name: str, microbatches: int = 8, costs: Costs = USUAL, chunks: int | None = None) -> Timeline:
    return simulate(table(name, microbatches, chunks), costs)


def messages(name: str, chunks: int | None = None) -> Iterator[tuple[int, int, str]]:
    """(sender, receiver, what) of every message of a step with 8 micro-batches."""
    lowered = lower(table(name, chunks=chunks))
    for rank, program in enumerate(lowered.programs):
        for act in program:
            if act.op in ("SF", "SB"):
                yield rank, lowered.peer(rank, act), act.op


@claim("C4.1-a", says="Pipeline parallelism splits the model by layers.", registered=EXACT, sources=(GPIPE,))
def _by_layers() -> Finding:
    pieces = [layer for run in split_layers(LAYERS, STAGES) for layer in run]
    return Finding(
        "The definition. Every layer lies whole on one stage; embedding and head go to the ends.",
        [Reading("each layer on exactly one stage", pieces == list(range(LAYERS)))],
    )


@claim(
    "C4.1-b",
    says="48 layers on 4 GPUs: 1–12, 13–24, 25–36, 37–48.",
    registered=EXACT,
    sources=("arithmetic",),
)
def _twelve_each() -> Finding:
    bounds = [(run.start + 1, run.stop) for run in split_layers(LAYERS, STAGES)]
    return Finding(
        "Twelve each. Real models also have an embedding and a head, whose stages then have more to do.",
        [Reading("the plan's own rule", bounds == [(1, 12), (13, 24), (25, 36), (37, 48)])],
    )


@claim(
    "C4.1-c",
    says="Data flow: a batch goes from GPU 0 through GPUs 1, 2 and 3 to the output.",
    registered=ASSUMPTION,
    sources=(GPIPE,),
)
def _flow() -> Finding:
    down = {(a, b) for a, b, kind in messages("1f1b") if kind == "SF"}
    back = {(a, b) for a, b, kind in messages("1f1b") if kind == "SB"}
    return Finding(
        "Forwards, yes. Training also sends a gradient of the same size back over every boundary.",
        [
            Reading("the forward pass", down == {(0, 1), (1, 2), (2, 3)}),
            Reading("everything that travels in a training step", not back),
        ],
    )


@claim(
    "C4.2-a",
    says="In a naive pipeline GPUs 1 to 3 wait while GPU 0 handles batch 1: a bubble.",
    registered=EXACT,
    sources=(GPIPE, SIMULATED),
)
def _naive() -> Finding:
    naive = run("naive", 1)
    return Finding(
        f"One GPU works at a time, so {percent_text(naive.bubble_fraction, digits=0)} of the GPUs' time is "
        "idle.",
        [
            Reading(
                "no other stage starts before stage 0's forward has ended",
                all(naive.start[stage][0] >= naive.end[0][0] for stage in (1, 2, 3)),
            )
        ],
    )


@claim(
    "C4.2-b",
    says="Diagram: batch 2 follows batch 1 one step behind, and each GPU one step behind the one before.",
    registered=ASSUMPTION,
    sources=(SIMULATED,),
)
def _staggered() -> Finding:
    forwards = run("gpipe", 2, FORWARDS_ONLY)
    whole = run("gpipe", 2)
    placed = all(forwards.start[s][j] == s + j for s in range(STAGES) for j in (0, 1))
    return Finding(
        f"Right for the forwards of two micro-batches, which end after {forwards.makespan:g} steps. A "
        "training "
        f"step goes on with backwards: at twice a forward's time it takes {whole.makespan:g}.",
        [
            Reading("forwards of two micro-batches", placed),
            Reading("a whole training step", whole.makespan == forwards.makespan),
        ],
    )


@claim(
    "C4.2-c",
    says="The diagram shows the bubble of a naive pipeline.",
    registered=IMPRECISE,
    sources=(GPIPE, SIMULATED),
)
def _which_pipeline() -> Finding:
    naive, piped = run("naive", 2), run("gpipe", 2)
    second = {"naive": naive.start[0][2], "piped": piped.start[0][1]}
    return Finding(
        f"Batch 2 enters GPU 0 at step {second['piped']:g}, before batch 1 has left GPU 3: that is already "
        f"micro-batch pipelining. A naive run would start it at {second['naive']:g}, after batch 1's "
        "backward. "
        f"Backwards are missing: with them {percent_text(piped.bubble_fraction, digits=0)} of the time is "
        "idle.",
        [
            Reading("naive: one batch there and back, then the next", second["naive"] == 1),
            Reading("pipelined micro-batches, forwards only", second["piped"] == 1, usual=False),
        ],
    )


@claim("C4.2-d", says="The diagram's time axis runs from 0 to 7.", registered=WRONG, sources=(SIMULATED,))
def _axis() -> Finding:
    forwards = run("gpipe", 2, FORWARDS_ONLY)
    heads, cells, drawn = 8, 6, 2
    shares = [1 - drawn / columns for columns in (cells, heads)]
    return Finding(
        f"Eight column heads stand over six cells. As drawn {percent_text(shares[0])} of the cells are "
        "idle, of "
        f"the columns {percent_text(shares[1])}; the run takes {forwards.makespan:g} steps and idles "
        f"{percent_text(forwards.bubble_fraction, digits=0)}. The waits before the first batch are bubble, "
        "too.",
        [
            Reading("as many columns as the run has steps", forwards.makespan == heads),
            Reading("as many columns as the rows have cells", cells == heads),
        ],
    )


@claim(
    "C4.2-e",
    says="Share of the bubble: 1 − m/(m + p − 1) with m micro-batches and p stages.",
    registered=ASSUMPTION,
    sources=(f"{GPIPE}, section 2.3", f"{MEGATRON}.1", SIMULATED),
)
def _formula() -> Finding:
    def agrees(costs: Costs) -> bool:
        return all(
            abs(
                simulate(build(name, stages=p, microbatches=m), costs).bubble_fraction - (1 - m / (m + p - 1))
            )
            < 1e-9
            for name in ("gpipe", "1f1b")
            for p, m in SIZES
        )

    shares = ", ".join(percent_text(run("1f1b", m).bubble_fraction) for m in (4, 8, 16, 32))
    late = run("1f1b", 8, Costs(forward=1, backward_input=2, backward_weight=0, transfer=0.25))
    return Finding(
        f"(p−1)/(m+p−1) of the whole time, for GPipe and 1F1B, whatever a backward costs. For 4 stages and "
        f"m = 4, 8, 16, 32: {shares}. Megatron-LM's (p−1)/m is the same bubble over the ideal time. Stages "
        "must "
        f"be equal and messages free: with messages of a quarter of a forward it is "
        f"{percent_text(late.bubble_fraction)} instead of {percent_text(run('1f1b').bubble_fraction)}.",
        [
            Reading("share of the whole time; equal stages, free messages", agrees(USUAL) and agrees(UNIT)),
            Reading("over the ideal time", prints_as((STAGES - 1) / 8, 1 - 8 / (8 + STAGES - 1))),
        ],
    )


@claim(
    "C4.2-f",
    says="The text and the picture say batch 1 and batch 2 where the formula has micro-batches.",
    registered=IMPRECISE,
    sources=(f"{GPIPE}, section 2.2",),
)
def _batches() -> Finding:
    formula = 1 - 2 / (2 + STAGES - 1)
    updated, piped = run("naive", 2).bubble_fraction, run("gpipe", 2).bubble_fraction
    return Finding(
        "They must be micro-batches of one batch, with one update at the end. If the weights changed after "
        "batch 1, batch 2 would have to wait for its backward, and nothing would overlap.",
        [
            Reading("batches, each with its own update", abs(updated - formula) < 1e-9),
            Reading("micro-batches of one batch", abs(piped - formula) < 1e-9, usual=False),
        ],
    )
