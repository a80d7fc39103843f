"""What an explorer shows in one state: a figure and the words and numbers beside it, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

DIGITS = 9  # significant digits kept in figures and values: far beyond what a reader sees, short in the page
EXACT = (str, int)  # types that need no rounding


@dataclass(frozen=True, kw_only=True)
class Readout:
    """A number beside the figure. ``value`` is unrounded, in ``unit``; ``tone`` is "", "good" or "bad"."""

    name: str
    label: str
    text: str
    value: float | None = None
    unit: str = ""
    note: str = ""
    tone: str = ""


@dataclass(frozen=True, kw_only=True)
class Swatch:
    """An entry of the legend: the colour and pattern of one part of the figure, and what it amounts to."""

    name: str
    label: str
    color: str
    pattern: str = ""
    text: str = ""
    value: float | None = None
    unit: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of texts; the first cell of a row is its heading."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "caption": self.caption,
            "columns": list(self.columns),
            "rows": [list(row) for row in self.rows],
        }


@dataclass(frozen=True, kw_only=True)
class File:
    """A text to copy; ``name`` is its file's, or says what it is."""

    name: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A further part of a view, under a heading: a sentence and any of a figure, a table, texts to copy.

    Every view of an explorer has the same panels by ``name``; what a panel lacks in one state is hidden.
    """

    name: str
    title: str
    summary: str
    figure: dict[str, Any] | None = None
    legend: tuple[Swatch, ...] = ()
    table: Table | None = None
    files: tuple[File, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "summary": self.summary,
            "figure": rounded(self.figure),
            "legend": [_filled(swatch) for swatch in self.legend],
            "table": self.table and self.table.to_dict(),
            "files": [vars(file) for file in self.files],
        }


@dataclass(frozen=True, kw_only=True)
class View:
    """``summary`` says in a sentence what the figure shows; it is read out when it changes.

    ``job`` is the state as a job (TOML), to be carried on or downloaded. ``limits`` gives, for a control
    whose range depends on others, the number of its options that apply. ``notes`` are further sentences,
    ``panels`` further parts below them.
    """

    figure: dict[str, Any]
    summary: str
    readouts: tuple[Readout, ...]
    table: Table
    legend: tuple[Swatch, ...] = ()
    notes: tuple[str, ...] = ()
    job: str = ""
    limits: dict[str, int] | None = None
    panels: tuple[Panel, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON data, numbers rounded to 9 significant digits, empty fields left out."""
        return {
            "figure": rounded(self.figure),
            "summary": self.summary,
            "readouts": [_filled(readout) for readout in self.readouts],
            "table": self.table.to_dict(),
            "legend": [_filled(swatch) for swatch in self.legend],
            "notes": list(self.notes),
            "job": self.job,
            "limits": dict(self.limits or {}),
            **({"panels": [panel.to_dict() for panel in self.panels]} if self.panels else {}),
        }


def _filled(entry: Readout | Swatch) -> dict[str, Any]:
    return {name: rounded(value) for name, value in vars(entry).items() if value not in ("", None)}


def rounded(value: Any, *, digits: int = DIGITS) -> Any:
    """Plain data with its numbers rounded to so many significant digits."""
    if isinstance(value, float):
        short = float(f"{value:.{digits}g}")
        return int(short) if short == int(short) and abs(short) < 1e15 else short
    if isinstance(value, dict):
        return {name: rounded(item, digits=digits) for name, item in value.items()}
    if isinstance(value, list | tuple):
        # Most items are words and whole numbers: a figure of 500 actions has 10,000 of them.
        return [item if type(item) in EXACT else rounded(item, digits=digits) for item in value]
    return value
