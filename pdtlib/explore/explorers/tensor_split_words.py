"""What explorer ``tensor-split`` says about a split: a sentence, the matrices' shapes, and notes."""

from __future__ import annotations

from pdtlib.explore.explorer import Values
from pdtlib.explore.view import Table
from pdtlib.figures.amounts import bytes_words
from pdtlib.figures.tensor_split import Split
from pdtlib.figures.words import say
from pdtlib.plan.spec import Hardware, Model
from pdtlib.plan.units import percent_text

NODE = Hardware.gpus_per_node  # what a job takes for granted


def summary(split: Split, *, part: str, forward: bool, message: float, share: float, link: str) -> str:
    if split.tp == 1:
        return say("split.summary_one")
    what = say(
        f"split.summary_{part}",
        rank=split.rank,
        tp=split.tp,
        queries=_span(split.queries),
        keys=_span(split.keys),
    )
    end = say("split.summary_forward" if forward else "split.summary_backward", message=bytes_words(message))
    return f"{what} {end} {say('split.summary_share', link=link, share=percent_text(share))}"


def _span(numbers: range) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}–{numbers[-1]}"


def table(model: Model, split: Split, *, part: str) -> Table:
    """Every matrix with its whole shape, a rank's shape and the share of parameters."""
    tp, h, d = split.tp, model.hidden, model.head_dim
    if part == "mlp":
        ups = ("gate", "up") if model.activation == "swiglu" else ("up",)
        rows = [(name, (h, model.ffn), (h, model.ffn // tp), "columns") for name in ups]
        rows.append(("down", (model.ffn, h), (model.ffn // tp, h), "rows"))
    else:
        q, kv = model.heads * d, model.kv_heads * d
        own_q, own_kv = len(split.queries) * d, len(split.keys) * d
        rows = [("W_Q", (h, q), (h, own_q), "columns")]
        rows += [(name, (h, kv), (h, own_kv), "columns") for name in ("W_K", "W_V")]
        rows.append(("W_O", (q, h), (own_q, h), "rows"))
    return Table(
        caption=say("split.table", rank=split.rank),
        columns=tuple(say(f"split.column_{name}") for name in ("matrix", "whole", "own", "cut", "share")),
        rows=tuple(
            (
                name,
                _shape(whole),
                _shape(own),
                say(f"split.cut_{cut}"),
                percent_text(own[0] * own[1] / (whole[0] * whole[1])),
            )
            for name, whole, own, cut in rows
        ),
    )


def _shape(shape: tuple[int, int]) -> str:
    return f"{shape[0]:,} × {shape[1]:,}"


def notes(values: Values, model: Model, split: Split) -> tuple[str, ...]:
    found = [say("split.note_ring"), say("split.note_model")]
    if split.tp > model.kv_heads:
        copies = split.tp // model.kv_heads
        found.insert(0, say("split.note_repeated", copies=copies, kv_heads=model.kv_heads, tp=split.tp))
    if values["link"] == "nvlink" and split.tp > NODE:
        found.insert(0, say("split.note_nvlink", node=NODE, tp=split.tp))
    return tuple(found)
