"""The ways to cut a block along the sequence: who has what, which messages, and how they are told."""

from __future__ import annotations

from collections.abc import Callable

from pdtlib.explore.explorer import Values
from pdtlib.explore.view import Table
from pdtlib.figures.amounts import bytes_words
from pdtlib.figures.sequence_regions import REGIONS, Bar, Call, Held
from pdtlib.figures.words import say
from pdtlib.plan.spec import Model
from pdtlib.plan.units import GB, gb_text

MODES = ("tp", "sp", "ulysses", "ring")
IN_HEADS = ("qkv", "core", "mlp")
CALLS = {
    ("tp", "forward"): (Call("core", "AR"), Call("mlp", "AR")),
    ("tp", "backward"): (Call("norm1", "AR"), Call("norm2", "AR")),
    ("sp", "forward"): (Call("norm1", "AG"), Call("core", "RS"), Call("norm2", "AG"), Call("mlp", "RS")),
    ("sp", "backward"): (
        Call("norm1", "RS+AG"),
        Call("core", "AG"),
        Call("norm2", "RS+AG"),
        Call("mlp", "AG"),
    ),
    ("ulysses", "forward"): (Call("qkv", "A2A"), Call("core", "A2A")),
    ("ulysses", "backward"): (Call("qkv", "A2A"), Call("core", "A2A")),
    ("ring", "forward"): (Call("core", "k, v", inside=True),),
    ("ring", "backward"): (Call("core", "k, v + grads", inside=True),),
}


def held(mode: str, ranks: int, rank: int) -> tuple[Held, ...]:
    """How the rank has each region's tensor."""
    rows, columns = Held("rows", (rank,), ranks), Held("columns", (rank,), ranks)
    if mode == "tp":
        return tuple(columns if name in IN_HEADS else Held("whole") for name in REGIONS)
    if mode == "sp":
        return tuple(columns if name in IN_HEADS else rows for name in REGIONS)
    if mode == "ulysses":
        return tuple(columns if name == "core" else rows for name in REGIONS)
    return (Held("rows", (rank, 2 * ranks - 1 - rank), 2 * ranks),) * len(REGIONS)


def sent_words(value: float) -> str:
    """Two decimals of a GB: ways to cut differ by a factor of ten and more."""
    return bytes_words(value) if value < GB / 20 else gb_text(value, digits=2)


def kept_words(value: float) -> str:
    return bytes_words(value, binary=True)


def bars(amounts: dict[str, float | None], words: Callable[[float], str]) -> list[Bar]:
    return [
        Bar(say(f"regions.mode_{name}"), value, say("regions.impossible") if value is None else words(value))
        for name, value in amounts.items()
    ]


def table(mode: str, ranks: int, sent: dict[str, float | None], kept: dict[str, float | None]) -> Table:
    """Each way to cut: how it has each region, what it sends and keeps."""
    sent_bars, kept_bars = bars(sent, sent_words), bars(kept, kept_words)
    rows = []
    for name, sent_bar, kept_bar in zip(MODES, sent_bars, kept_bars, strict=True):
        cuts = (say(f"regions.cut_{how.cut}", share=f"1/{ranks}") for how in held(name, ranks, 0))
        rows.append((sent_bar.name, *cuts, sent_bar.text, kept_bar.text))
    return Table(
        caption=say("regions.table", mode=say(f"regions.mode_{mode}")),
        columns=(
            say("regions.column_mode"),
            *(say(f"regions.name_{name}") for name in REGIONS),
            say("regions.column_sent"),
            say("regions.column_kept"),
        ),
        rows=tuple(rows),
    )


def notes(values: Values, model: Model, mode: str) -> tuple[str, ...]:
    found = [say("regions.note_short"), say("regions.note_kept")]
    if model.dropout and mode in ("ulysses", "ring"):
        found.append(say("regions.note_dropout"))
    if mode == "ring":
        found.insert(0, say("regions.note_zigzag"))
    if mode == "sp" and values["direction"] == "backward":
        found.insert(0, say("regions.note_again"))
    if not values["flash"] and values["recompute"] == "none":
        found.append(say("regions.note_scores"))
    return tuple(found)
