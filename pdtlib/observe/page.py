"""A run as one HTML file that needs no network and no other file: ``pdt report``."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pdtlib.observe.compare import NoRun, compare
from pdtlib.observe.diagnosis import diagnose
from pdtlib.observe.shares import read_perfetto
from pdtlib.plan.step_shares import Shares, steps_of, typical
from pdtlib.plan.units import percent_text, time_text

WIDTH, HEIGHT = 640, 160
COLOURS = {
    # share: its colour, told apart in light, dark and without colour vision (Okabe and Ito)
    "computation": "#0072b2",
    "exposed communication": "#d55e00",
    "bubble": "#e69f00",
    "data": "#cc79a7",
    "other": "#999999",
}
STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; } .scroll { overflow-x: auto; }
th, td { padding: .2rem .8rem; text-align: right; border-bottom: 1px solid #8885; }
th:first-child, td:first-child { text-align: left; }
svg { max-width: 100%; height: auto; } .key { display: inline-block; width: .8em; height: .8em; }
"""


def page(run_dir: Path) -> str:
    """The report of a finished run. Raises :class:`NoRun` for a directory without one."""
    rows = compare(run_dir)
    try:
        causes = diagnose(run_dir)
        ranks = {
            rank: typical(steps_of(spans)) for rank, spans in read_perfetto(run_dir / "trace.json").items()
        }
        metrics = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
        machine = json.loads((run_dir / "machine.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise NoRun(f"{run_dir} does not hold what pdt run writes: {error}") from error
    told = [
        f"<li><strong>{_text(cause.cause)}</strong>, {percent_text(cause.cost)} of a step: "
        f"{_text(cause.evidence)}. {_text(cause.fix)}.</li>"
        for cause in causes
    ]
    last = metrics[-1]
    summary = (
        f"{len(metrics)} steps on {machine['world_size']} ranks ({machine['device']}), last loss "
        f"{last['loss']:.4f}, last step {time_text(last['time_s'])}, MFU {percent_text(last['mfu'])} of "
        f"{machine['peak_source']}"
    )
    body = [
        f"<h1>{_text(run_dir.absolute().name)}</h1>",
        f"<p>{_text(summary)}.</p>",
        "<h2>Loss</h2>",
        _curve([line["loss"] for line in metrics], label="loss of every step"),
        "<h2>Where a step's time goes</h2>",
        _legend(),
        *(_bar(rank, one) for rank, one in sorted(ranks.items())),
        "<p>Medians over the traced steps without the first. The trace itself opens in Perfetto.</p>",
        "<h2>What it loses time to</h2>",
        f"<ul>{''.join(told)}</ul>" if told else "<p>Nothing that costs more than 5 % of a step.</p>",
        "<h2>Predicted and measured</h2>",
        _table(("quantity", "predicted", "measured", "error"), map(_cells, rows)),
        "<h2>Job</h2>",
        f"<pre>{_text((run_dir / 'job.json').read_text(encoding='utf-8'))}</pre>",
    ]
    title = f"<title>{_text(run_dir.absolute().name)}</title>"
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width">{title}'
    return "\n".join(
        [
            f'<!doctype html><html lang="en"><head>{head}<style>{STYLE}</style></head><body>',
            *body,
            "</body></html>\n",
        ]
    )


def _curve(values: Sequence[float], *, label: str) -> str:
    low, high = min(values), max(values)
    spread = (high - low) or 1.0
    across = WIDTH / max(1, len(values) - 1)
    points = " ".join(
        f"{number * across:.1f},{HEIGHT - (value - low) / spread * (HEIGHT - 10) - 5:.1f}"
        for number, value in enumerate(values)
    )
    line = f'<polyline points="{points}" fill="none" stroke="{COLOURS["computation"]}" stroke-width="2"/>'
    told = f"{label}: from {values[0]:.4f} to {values[-1]:.4f}"
    picture = (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" aria-label="{told}">{line}</svg>'
    )
    return f"<p>{picture}<br>{told}.</p>"


def _bar(rank: int, one: Shares) -> str:
    seconds = {
        "computation": one.compute_s,
        "exposed communication": one.communication_s,
        "bubble": one.bubble_s,
        "data": one.data_s,
        "other": max(0.0, one.other_s),
    }
    told = ", ".join(f"{name} {percent_text(part / one.step_s)}" for name, part in seconds.items())
    at, pieces = 0.0, []
    for name, part in seconds.items():
        width = WIDTH * part / one.step_s
        pieces.append(f'<rect x="{at:.1f}" width="{width:.1f}" height="18" fill="{COLOURS[name]}"/>')
        at += width
    box = f'viewBox="0 0 {WIDTH} 18" width="{WIDTH}"'
    picture = f'<svg {box} role="img" aria-label="{told}">{"".join(pieces)}</svg>'
    return f"<p>rank {rank}, {time_text(one.step_s)} a step<br>{picture}<br><small>{told}</small></p>"


def _legend() -> str:
    keys = (
        f'<span class="key" style="background:{colour}"></span> {name}' for name, colour in COLOURS.items()
    )
    return f"<p>{' &nbsp; '.join(keys)}</p>"


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{name}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def _cells(row: dict[str, Any]) -> tuple[str, str, str, str]:
    error = "–" if row["error"] is None else percent_text(row["error"], digits=2)
    return row["quantity"], f"{row['predicted']:,.6g}", f"{row['measured']:,.6g}", error


def _text(text: str) -> str:
    return html.escape(text)
