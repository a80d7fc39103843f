"""A layer's part cut over tensor-parallel ranks, and what share of the time its messages take.

Above, the MLP as column-cut and row-cut matrices, or attention as heads, with f and g at the two ends. Below,
the share of communication against the rate of the link.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pdtlib.figures.boxes import Box, filled, hidden_axis, label, outline
from pdtlib.figures.parts import Part, heading
from pdtlib.figures.theme import axis, layout
from pdtlib.figures.words import say
from pdtlib.plan.units import GB

WHOLE, OWN = Part("whole", "c4", "/"), Part("own", "c1")
HEIGHT = 24.0


@dataclass(frozen=True)
class Split:
    """Which part of what one rank has: its number, and the heads, where attention is cut."""

    tp: int
    rank: int
    heads: int = 0
    kv_heads: int = 0
    queries: range = range(0)
    keys: range = range(0)


@dataclass(frozen=True)
class Link:
    """A link with its rate in bytes per second and the share of communication on it."""

    name: str
    bytes_per_s: float
    share: float


def figure(
    split: Split,
    *,
    part: str,
    active: str,
    curve: Sequence[tuple[float, float]],
    links: Sequence[Link],
    chosen: Link,
) -> dict[str, Any]:
    """``part`` is mlp or attention, ``active`` the end that communicates: f or g, or nothing at tp=1.

    ``curve`` gives shares of communication by bytes per second.
    """
    traces, labels = _mlp(split) if part == "mlp" else _attention(split)
    rates = [rate / GB for rate, _ in curve]
    cost = {"xaxis": "x2", "yaxis": "y2"}
    traces += [
        {
            "type": "scatter",
            "mode": "lines",
            "x": rates,
            "y": [100 * share for _, share in curve],
            "line": {"color": "@c2", "width": 2},
            "hoverinfo": "skip",
            **cost,
        },
        _points(links, color="muted", size=9, symbol="circle", **cost),
        _points([chosen], color="c2", size=13, symbol="diamond", **cost),
    ]
    return {
        "data": traces,
        "layout": layout(
            height=470,
            margin={"l": 8, "r": 12, "t": 28, "b": 8},
            xaxis=hidden_axis(0, 100, anchor="y"),
            yaxis=hidden_axis(-9, 34, domain=[0.5, 1.0], anchor="x"),
            xaxis2=axis(
                say("split.axis_rate"),
                type="log",
                anchor="y2",
                tickmode="array",
                tickvals=[10, 20, 50, 100, 200, 500, 1000],
            ),
            yaxis2=axis(domain=[0.0, 0.36], range=[0, 100], ticksuffix=" %", nticks=5),
            annotations=[
                heading(say(f"split.drawing_{part}"), y=1.0),
                heading(say("split.curve"), y=0.37),
                *labels,
                *_ends(active),
            ],
        ),
    }


def _ends(active: str) -> list[dict[str, Any]]:
    """f at the left edge and g at the right, the one that communicates in colour, with its name in full."""
    found = []
    for end, x in (("f", 2.5), ("g", 97.5)):
        color = "c2" if end == active else "muted"
        found.append(label(f"<b>{end}</b>", x=x, y=HEIGHT / 2, color=color, size=20))
    if active:
        x, side = (0.0, "left") if active == "f" else (100.0, "right")
        found.append(label(f"<b>{say(f'split.sends_{active}')}</b>", x=x, y=-6.5, color="c2", xanchor=side))
    return found


def _mlp(split: Split) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    tp, rank = split.tp, split.rank
    x, up, inner = Box(8, 0, 12, HEIGHT), Box(24, 0, 24, HEIGHT), Box(51, 0, 15, HEIGHT)
    down, y = Box(69, 0, 10, HEIGHT), Box(82, 0, 10, HEIGHT)
    strips = [
        *(box.columns(i, i + 1, tp) for box in (up, inner) for i in range(tp)),
        *(down.rows(i, i + 1, tp) for i in range(tp)),
    ]
    share = say("split.share", tp=tp) if tp > 1 else say("split.all")
    traces = [
        outline([x, y, *strips]),
        filled(x, color=WHOLE.color, pattern=WHOLE.pattern, hover=say("split.hover_x")),
        filled(
            up.columns(rank, rank + 1, tp),
            color=OWN.color,
            hover=say("split.hover_up", rank=rank, share=share),
        ),
        filled(
            inner.columns(rank, rank + 1, tp),
            color=OWN.color,
            hover=say("split.hover_inner", rank=rank, share=share),
        ),
        filled(
            down.rows(rank, rank + 1, tp),
            color=OWN.color,
            hover=say("split.hover_down", rank=rank, share=share),
        ),
        filled(y, color=WHOLE.color, pattern=WHOLE.pattern, hover=say("split.hover_y")),
    ]
    names = (("X", x), ("A", up), ("H", inner), ("B", down), ("Y", y))
    labels = [label(f"<b>{name}</b>", x=box.middle, y=HEIGHT + 3) for name, box in names]
    return traces, labels


def _attention(split: Split) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Query heads above the key/value heads that they share; below, the rows of W_O that belong to them."""
    heads, kv_heads = split.heads, split.kv_heads
    q, kv, o = Box(8, 16.5, 84, 7), Box(8, 8.25, 84, 7), Box(8, 0, 84, 7)
    cells = [
        *(box.columns(i, i + 1, heads) for box in (q, o) for i in range(heads)),
        *(kv.columns(i, i + 1, kv_heads) for i in range(kv_heads)),
    ]
    queries, keys, rank = split.queries, split.keys, split.rank
    words = {"rank": rank, "first": queries[0], "last": queries[-1]}
    kv_words = {"rank": rank, "first": keys[0], "last": keys[-1]}
    traces = [
        outline(cells),
        filled(
            q.columns(queries[0], queries[-1] + 1, heads),
            color=OWN.color,
            hover=say("split.hover_q", **words),
        ),
        filled(
            kv.columns(keys[0], keys[-1] + 1, kv_heads),
            color=OWN.color,
            hover=say("split.hover_kv", **kv_words),
        ),
        filled(
            o.columns(queries[0], queries[-1] + 1, heads),
            color=OWN.color,
            hover=say("split.hover_o", **words),
        ),
    ]
    names = ((say("split.row_q"), q), (say("split.row_kv"), kv), (say("split.row_o"), o))
    labels = [
        label(
            f"<b>{name}</b>", x=box.middle, y=box.y + box.height / 2, bgcolor="@paper", opacity=0.9, size=11
        )
        for name, box in names
    ]
    return traces, labels


def _points(links: Sequence[Link], *, color: str, size: int, symbol: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [link.bytes_per_s / GB for link in links],
        "y": [100 * link.share for link in links],
        "marker": {"color": f"@{color}", "size": size, "symbol": symbol},
        "hoverinfo": "text",
        "hovertext": [
            say(
                "split.hover_link",
                name=link.name,
                rate=f"{link.bytes_per_s / GB:g}",
                share=f"{link.share:.0%}",
            )
            for link in links
        ],
        **more,
    }
