"""Small drawings for the chapters, as SVG or HTML that follows the page's colours.

Each is drawn from values (ranks, slices, shard bounds) that the library computes. They carry a title for
screen readers, use the text colour of the page, and stay legible on a narrow screen.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from pdtlib.plan.sharding import shard_range

COLOURS = {
    "parameters": "#3b82c4",
    "gradients": "#d9822b",
    "optimizer state": "#2a9d72",
    "activations": "#b25fa6",
}


@dataclass(frozen=True)
class Drawing:
    """Markup that a notebook displays, with the sentence that stands for it where it cannot be seen."""

    markup: str
    sentence: str

    def _repr_html_(self) -> str:
        return self.markup

    def __repr__(self) -> str:
        return self.sentence


def svg(width: int, height: int, title: str, shapes: Sequence[str], *, max_width_px: int) -> str:
    """A picture of shapes that takes the page's text colour and at most ``max_width_px``."""
    return (
        f'<svg role="img" aria-label="{html.escape(title, quote=True)}" viewBox="0 0 {width} {height}" '
        f'style="display:block;width:100%;max-width:{max_width_px}px;height:auto;margin:1rem auto;'
        f'color:inherit" font-family="inherit" font-size="11" fill="currentColor">{"".join(shapes)}</svg>'
    )


def text(x: float, y: float, words: str, *, anchor: str = "start", bold: bool = False) -> str:
    """A line of text."""
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{weight}>{html.escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, colour: str, *, opacity: float = 1.0) -> str:
    """A rectangle."""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="2" fill="{colour}" '
        f'fill-opacity="{opacity:g}" stroke="{colour}"/>'
    )


def step_lifetimes() -> Drawing:
    """What is alive when, in one training step on one device."""
    left, width, row = 92.0, 268.0, 34.0
    forward, backward, update = 0.36, 0.82, 1.0
    edges = [left + width * part for part in (0.0, forward, backward, update)]
    shapes = [
        text((edges[i] + edges[i + 1]) / 2, 14, name, anchor="middle", bold=True)
        for i, name in enumerate(("forward", "backward", "update"))
    ]
    shapes += [
        f'<line x1="{x:g}" x2="{x:g}" y1="20" y2="{28 + 4 * row:g}" stroke="currentColor" '
        f'stroke-opacity="0.45" stroke-dasharray="3 3"/>'
        for x in edges
    ]

    def ramp(index: int, points: Sequence[tuple[float, float]]) -> str:
        base, tall = 24 + (index + 1) * row - 4, row - 10
        outline = " ".join(f"{left + width * x:g},{base - tall * y:g}" for x, y in points)
        colour = list(COLOURS.values())[index]
        return f'<polygon points="{outline}" fill="{colour}" fill-opacity="0.85" stroke="{colour}"/>'

    always = [(0.0, 0.0), (0.0, 1.0), (1.0, 1.0), (1.0, 0.0)]
    outlines = [
        always,
        [(forward, 0.0), (backward, 1.0), (update, 1.0), (update, 0.0)],
        always,
        [(0.0, 0.0), (forward, 1.0), (backward, 0.0)],
    ]
    for index, (name, points) in enumerate(zip(COLOURS, outlines, strict=True)):
        shapes.append(text(left - 6, 24 + (index + 0.5) * row + 5, name, anchor="end"))
        shapes.append(ramp(index, points))
    sentence = (
        "One training step. Parameters and optimizer state are held throughout. Activations grow during the "
        "forward pass and are released during the backward pass. Gradients grow during the backward pass and "
        "are held until the update."
    )
    return Drawing(svg(370, int(30 + 4 * row), sentence, shapes, max_width_px=620), sentence)


def replicas(*, ranks: int, batch: int) -> Drawing:
    """``ranks`` replicas of a model, the samples that each of them gets, and the all-reduce below."""
    slices = [shard_range(batch, ranks, rank) for rank in range(ranks)]
    framed = "padding:.5rem .7rem;border:1px solid currentColor;border-radius:.4rem"
    cards = "".join(
        f'<li style="flex:1 1 8rem;list-style:none;margin:0;{framed}">'
        f"<strong>GPU {rank}</strong><br>whole model<br>samples {start} to {stop - 1}</li>"
        for rank, (start, stop) in enumerate(slices)
    )
    sentence = (
        f"{ranks} GPUs each hold the whole model. "
        + " ".join(f"GPU {rank} gets samples {a} to {b - 1}." for rank, (a, b) in enumerate(slices))
        + " After the backward pass an all-reduce gives all of them the same mean gradient,"
        " and each makes the same update."
    )
    step = f"margin:.6rem 0 0;text-align:center;{framed}"
    markup = (
        f'<figure style="margin:1rem 0"><ul style="display:flex;flex-wrap:wrap;gap:.6rem;margin:0;padding:0">'
        f'{cards}</ul><p style="{step}">⇅ <strong>all-reduce</strong>: every GPU ends with the mean of the '
        f"{ranks} gradients</p>"
        f'<p style="{step}">every GPU makes the same update, so the {ranks} models stay equal</p></figure>'
    )
    return Drawing(markup, sentence)


def ownership(*, ranks: int) -> Drawing:
    """Which part of each state every rank keeps under plain DP and ZeRO-1, 2 and 3."""
    states = ("parameters", "gradients", "optimizer state")
    sharded = {0: (), 1: states[2:], 2: states[1:], 3: states}
    left, top, cell, row = 58.0, 40.0, 300.0 / ranks, 58.0
    shapes = [text(left + (rank + 0.5) * cell, 34, f"GPU {rank}", anchor="middle") for rank in range(ranks)]
    x = 4.0
    for state in states:
        shapes += [box(x, 4, 10, 10, COLOURS[state]), text(x + 14, 13, state)]
        x += 34 + 6.2 * len(state)
    tall = row - 16
    for stage, cut in sharded.items():
        y = top + stage * row + 6
        shapes.append(text(left - 8, y + tall / 2 + 4, "DP" if stage == 0 else f"ZeRO-{stage}", anchor="end"))
        for rank in range(ranks):
            start, stop = shard_range(ranks, ranks, rank)
            for column, state in enumerate(states):
                wide = (cell - 12) / 3 - 3
                bar = left + rank * cell + 6 + column * (wide + 3)
                shapes.append(box(bar, y, wide, tall, COLOURS[state], opacity=0.12))
                a, b = (start / ranks, stop / ranks) if state in cut else (0.0, 1.0)
                shapes.append(box(bar, y + a * tall, wide, (b - a) * tall, COLOURS[state]))
    sentence = (
        f"What each of {ranks} GPUs keeps. Plain data parallelism: everything on every GPU. ZeRO-1: another "
        f"1/{ranks} of the optimizer state on each. ZeRO-2: also of the gradients. ZeRO-3: also of the "
        "parameters."
    )
    return Drawing(svg(364, int(top + 4 * row + 4), sentence, shapes, max_width_px=640), sentence)
