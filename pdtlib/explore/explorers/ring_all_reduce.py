"""Explorer ``ring-all-reduce``: which chunk goes where in each of the 2(N-1) steps, and what it costs."""

from __future__ import annotations

from pdtlib.explore.controls import Choice, Player, Slider, scale
from pdtlib.explore.explorer import Explorer, Values
from pdtlib.explore.view import Readout, Swatch, Table, View
from pdtlib.figures import ring as drawing
from pdtlib.figures.amounts import bytes_words
from pdtlib.figures.words import say
from pdtlib.plan.comm import sent_bytes
from pdtlib.plan.ring import holdings, num_steps, transfers
from pdtlib.plan.sharding import shard_numel

RANKS = range(2, 9)
SIZES = (25 * 2**20, 10**9, 15 * 10**9, 140 * 10**9)  # a DDP bucket; gradients of 0.5B, 7.5B, 70B in 16 bit


def _size_text(size: int) -> str:
    return bytes_words(size, binary=size == SIZES[0])


def _view(values: Values) -> View:
    ranks, size = values["ranks"], values["size"]
    steps = num_steps(ranks)
    step = min(values["step"], steps)
    chunk = shard_numel(size, ranks)
    held = holdings(ranks, step)
    finished = min(sum(len(chunk) == ranks for chunk in row) for row in held)
    total = sent_bytes("all_reduce", chunk * ranks, ranks)
    words = {
        "ranks": ranks,
        "step": step,
        "steps": steps,
        "size": _size_text(size),
        "chunk": bytes_words(chunk),
        "sent": bytes_words(step * chunk),
        "factor": f"{steps / ranks:.3g}",
    }
    return View(
        figure=drawing.figure(ranks, step),
        summary=_summary(ranks, step, steps, finished, words),
        readouts=(
            Readout(
                name="sent",
                label=say("ring.sent"),
                text=words["sent"],
                value=step * chunk,
                unit="bytes",
                note=say("ring.sent_note", share=f"{step / steps:.0%}"),
            ),
            Readout(
                name="total",
                label=say("ring.total"),
                text=bytes_words(total),
                value=total,
                unit="bytes",
                note=say("ring.total_note", size=words["size"]),
            ),
            Readout(name="chunk", label=say("ring.chunk"), text=words["chunk"], value=chunk, unit="bytes"),
            Readout(
                name="finished",
                label=say("ring.done"),
                text=f"{finished} / {ranks}",
                value=finished,
                unit="count",
            ),
            Readout(
                name="naive",
                label=say("ring.naive"),
                text=bytes_words(steps * size),
                value=steps * size,
                unit="bytes",
                note=say("ring.naive_note"),
            ),
        ),
        legend=(
            Swatch(name="partial", label=say("ring.partial"), color="c1", pattern="tint"),
            Swatch(name="complete", label=say("ring.complete"), color="c3", pattern="even"),
            Swatch(name="arrow", label=say("ring.arrow"), color="c2", pattern="line"),
        ),
        table=_table(ranks, step, held, sent_so_far=words["sent"]),
        notes=(say("ring.note", total=sum(map(drawing.start_value, range(ranks)))),),
        limits={"step": steps + 1},
    )


def _summary(ranks: int, step: int, steps: int, finished: int, words: dict[str, object]) -> str:
    if step == 0:
        return say("ring.summary_start", **words)
    if step < ranks - 1:
        return say("ring.summary_reduce", **words, count=step + 1)
    if step == ranks - 1 < steps:
        return say("ring.summary_scattered", **words)
    if step < steps:
        return say("ring.summary_gather", **words, count=finished)
    return say("ring.summary_done", **words)


def _table(ranks: int, step: int, held: list[list[frozenset[int]]], *, sent_so_far: str) -> Table:
    sent = transfers(ranks, step - 1) if step else ()
    rows = []
    for rank in range(ranks):
        just_sent = (
            say("ring.sends", chunk=sent[rank].chunk, receiver=sent[rank].receiver)
            if sent
            else say("ring.sends_nothing")
        )
        values = (str(sum(map(drawing.start_value, chunk))) for chunk in held[rank])
        rows.append((str(rank), *values, just_sent, sent_so_far))
    chunks = (say("ring.column_chunk", chunk=chunk) for chunk in range(ranks))
    return Table(
        caption=say("ring.table", step=step),
        columns=(say("ring.column_rank"), *chunks, say("ring.column_sends"), say("ring.column_sent")),
        rows=tuple(rows),
    )


EXPLORER = Explorer(
    id="ring-all-reduce",
    title=say("ring.title"),
    lead=say("ring.lead"),
    controls=(
        Slider(name="ranks", label=say("ring.ranks"), default=4, options=scale(RANKS)),
        Choice(name="size", label=say("ring.size"), default=10**9, options=scale(SIZES, _size_text)),
        Player(
            name="step",
            label=say("ring.step"),
            default=0,
            options=scale(
                range(num_steps(RANKS[-1]) + 1), lambda step: str(step) if step else say("ring.start")
            ),
        ),
    ),
    view=_view,
    together=(("ranks", "step"),),
)
