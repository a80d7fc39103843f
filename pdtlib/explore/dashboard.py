"""The dashboard of the reader's own run: two files of a run directory, read where the page is.

``of_files`` is what the page calls in the browser; ``show`` puts the dashboard into a notebook.
"""

from __future__ import annotations

import json
import os
import random
import statistics
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from pdtlib.explore.page import view_html
from pdtlib.explore.view import Readout, Swatch, Table, View
from pdtlib.figures import shares as drawing
from pdtlib.figures.amounts import time_words
from pdtlib.figures.words import say
from pdtlib.plan.efficiency import ARTICLE_BANDS
from pdtlib.plan.faulty_steps import straggler
from pdtlib.plan.overlap import Span
from pdtlib.plan.step_shares import Shares, spans_of, steps_of, typical
from pdtlib.plan.units import percent_text

MIME = "application/vnd.pdtlib.dashboard+json"
MOST_RANKS = 24
LARGEST_MB = 200
LIMITS = ARTICLE_BANDS["acceptable"]


def of_files(trace: str, metrics: str = "") -> dict[str, Any]:
    """The view of a run from the texts of its ``trace.json`` and, if given, its ``metrics.jsonl``.

    Raises ValueError, with what is wrong, for a text that is none of these.
    """
    return view(read_trace(trace), read_mfu(metrics)).to_dict()


def read_trace(text: str) -> dict[int, list[Span]]:
    """Spans by rank."""
    try:
        ranks = spans_of(json.loads(text)["traceEvents"])
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(say("dashboard.refused_trace", reason=f"{type(error).__name__}: {error}")) from error
    if not any(span.lane == "step" for spans in ranks.values() for span in spans):
        raise ValueError(say("dashboard.refused_steps"))
    return ranks


def read_mfu(text: str) -> list[float]:
    """MFU of each step; a last line that was cut short is left out."""
    found, lines = [], text.split("\n")
    for number, line in enumerate(lines[:-1], start=1):
        try:
            found.append(float(json.loads(line)["mfu"]))
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(say("dashboard.refused_metrics", line=number)) from error
    return found


def view(ranks: Mapping[int, Sequence[Span]], mfus: Sequence[float] = (), *, example: bool = False) -> View:
    """Shares of every rank's typical step, and what they add up to."""
    steps = {rank: found for rank, spans in sorted(ranks.items()) if (found := steps_of(spans))}
    usual = {rank: typical(found) for rank, found in steps.items()}
    shares = {rank: _parts(one) for rank, one in usual.items()}
    mean = {part.name: statistics.mean(one[part.name] for one in shares.values()) for part in drawing.PARTS}
    step_s = statistics.median(one.step_s for one in usual.values())
    drawn = dict(list(shares.items())[:MOST_RANKS])
    notes = [say("dashboard.example")] if example else []
    if len(drawn) < len(shares):
        notes.append(say("dashboard.note_first", shown=len(drawn), ranks=len(shares)))
    return View(
        figure=drawing.figure(drawn),
        summary=say(
            "dashboard.summary",
            ranks=len(usual),
            step=time_words(step_s),
            **{name: percent_text(mean[name]) for name in ("compute", "exposed", "bubble")},
        ),
        readouts=_readouts(usual, mean, step_s, mfus, max(map(len, steps.values()))),
        legend=tuple(
            Swatch(
                name=part.name,
                label=say(f"dashboard.part_{part.name}"),
                color=part.color,
                pattern=part.pattern,
                text=percent_text(mean[part.name]),
                value=mean[part.name],
                unit="share",
            )
            for part in drawing.PARTS
        ),
        table=Table(
            caption=say("dashboard.table"),
            columns=(
                say("dashboard.column_rank"),
                say("dashboard.step"),
                *(say(f"dashboard.part_{part.name}") for part in drawing.PARTS),
            ),
            rows=tuple(
                (
                    str(rank),
                    time_words(usual[rank].step_s),
                    *(percent_text(one[part.name]) for part in drawing.PARTS),
                )
                for rank, one in shares.items()
            ),
        ),
        notes=(*notes, say("dashboard.note_add")),
    )


def _parts(one: Shares) -> dict[str, float]:
    seconds = {
        "compute": one.compute_s,
        "exposed": one.communication_s,
        "bubble": one.bubble_s,
        "data": one.data_s,
        "other": one.other_s,
    }
    return {name: value / one.step_s for name, value in seconds.items()}


def _readouts(
    usual: Mapping[int, Shares], mean: Mapping[str, float], step_s: float, mfus: Sequence[float], steps: int
) -> tuple[Readout, ...]:
    found = [
        Readout(
            name="step",
            label=say("dashboard.step"),
            text=time_words(step_s),
            value=step_s,
            unit="s",
            note=say("dashboard.step_note", steps=max(1, steps - 1)),
        )
    ]
    if mfus:
        mfu = statistics.median(mfus[1:] or mfus)
        found.append(
            Readout(
                name="mfu",
                label=say("dashboard.mfu"),
                text=percent_text(mfu),
                value=mfu,
                unit="share",
                note=say("dashboard.mfu_note"),
            )
        )
        if mean["compute"] > 0:
            rate = mfu / mean["compute"]
            found.append(
                Readout(
                    name="kernels",
                    label=say("dashboard.kernels"),
                    text=percent_text(rate),
                    value=rate,
                    unit="share",
                    note=say("dashboard.kernels_note"),
                )
            )
    for name, limit in (("exposed", LIMITS.communication), ("bubble", LIMITS.bubble)):
        found.append(
            Readout(
                name=name,
                label=say(f"dashboard.{name}"),
                text=percent_text(mean[name]),
                value=mean[name],
                unit="share",
                note=say("dashboard.band_note", limit=percent_text(limit, digits=0)),
                tone="bad" if mean[name] > limit else "good",
            )
        )
    longest = max(usual, key=lambda rank: usual[rank].compute_s)
    median_s = statistics.median(one.compute_s for one in usual.values())
    if median_s > 0:
        spread = usual[longest].compute_s / median_s
        found.append(
            Readout(
                name="spread",
                label=say("dashboard.spread"),
                text=f"{spread:.2f}",
                value=spread,
                note=say("dashboard.spread_note", rank=longest),
            )
        )
    return tuple(found)


def example() -> View:
    """What stands on the page before a file is opened."""
    return view(straggler(random.Random(8)).ranks, example=True)


def html() -> str:
    """The fragment of the static page; ``front/dashboard.js`` brings it to life."""
    inputs = "".join(
        f'<p><label for="dashboard-{name}">{escape(say(f"dashboard.{name}"))}</label><br>'
        f'<input type="file" id="dashboard-{name}" name="{name}" accept="{kinds}"></p>'
        for name, kinds in (("trace", ".json"), ("metrics", ".jsonl"))
    )
    shown = example()
    words = {
        "reading": say("dashboard.reading"),
        "starting": say("page.starting"),
        "unreachable": say("page.unreachable"),
        "too_large": say("dashboard.too_large", limit=LARGEST_MB),
    }
    title = escape(say("dashboard.title"))
    return "\n".join(
        [
            f'<section class="pdt-explorer" id="dashboard" data-dashboard data-largest-mb="{LARGEST_MB}" '
            f'data-words="{escape(json.dumps(words, ensure_ascii=False))}" '
            'aria-labelledby="dashboard-title">',
            f'<div class="pdt-head"><p class="pdt-title" id="dashboard-title">{title}</p>'
            f'<p class="pdt-lead">{escape(say("dashboard.lead"))}</p></div>',
            '<div class="pdt-body"><div class="pdt-ask">',
            '<p class="pdt-summary" data-summary role="status" aria-live="polite">'
            f"{escape(shown.summary)}</p>",
            f'<form class="pdt-controls" aria-label="{title}">{inputs}</form></div>',
            f'<div class="pdt-main">{view_html(shown)}</div></div>',
            '<div class="pdt-tools"><span class="pdt-status" data-status role="status" aria-live="polite">'
            "</span></div>",
            "</section>",
        ]
    )


def show() -> None:
    """Show the dashboard: on the site with file inputs, in a notebook the example and how to read a run."""
    from IPython.display import display

    if os.environ.get("PDTLIB_BOOK") == "1":
        display({MIME: {}, "text/plain": example().summary}, raw=True)
        return
    from pdtlib.explore.live_dashboard import live

    display(live())
