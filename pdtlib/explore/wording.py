"""A value with its unit as a reader sees it; the scaling is that of :mod:`pdtlib.plan.units`."""

from __future__ import annotations

from collections.abc import Callable

from pdtlib.figures.amounts import gb_words, time_words
from pdtlib.plan import units

TEXTS: dict[str, Callable[[float], str]] = {
    "bytes": gb_words,
    "s": time_words,
    "flops": units.flops_text,
    "count": lambda value: f"{value:,.0f}",
    "share": units.percent_text,
    "money": lambda value: f"${value:,.0f}",
    "": lambda value: f"{value:.4g}",
}


def amount(value: float, unit: str) -> str:
    """The value in words; raises KeyError for a unit that has none."""
    return TEXTS[unit](value)
