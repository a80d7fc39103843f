"""The bug museum: faults of real training programs, each as small as it gets, beside its mended form.

Ranks are entries of a list here, so that a fault is a few lines of plain Python. Every exhibit is a function
of ``ranks`` that computes something in parallel; its ``one`` computes the same in one process. The
equivalence test runs both on the same input for several numbers of ranks: :func:`differences`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pdtlib.book.tables import Table

WORLDS = (1, 2, 4)


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """One fault.

    ``symptom`` is what its victims saw, ``fault`` what is wrong, ``lesson`` what the mended form does. The
    chapter named is where the right way is explained.
    """

    id: str
    chapter: str
    title: str
    symptom: str
    fault: str
    lesson: str
    one: Callable[[], Any]
    faulty: Callable[[int], Any]
    mended: Callable[[int], Any]


def differences(
    parallel: Callable[[int], Any], one: Callable[[], Any], *, worlds: Sequence[int] = WORLDS
) -> dict[int, tuple[Any, Any]]:
    """The equivalence test: by number of ranks, what one process gives and what the ranks give instead."""
    found = {}
    for ranks in worlds:
        expected, got = one(), parallel(ranks)
        if not _same(expected, got):
            found[ranks] = (expected, got)
    return found


def shown(exhibit: Exhibit) -> Table:
    """What the test says of an exhibit's faulty and of its mended form, for each number of ranks."""
    wrong, right = differences(exhibit.faulty, exhibit.one), differences(exhibit.mended, exhibit.one)
    return Table(
        f"One process gives {_told(exhibit.one())}",
        ("ranks", "the program above", "found", "mended"),
        [
            (
                ranks,
                _told(exhibit.faulty(ranks)),
                "differs" if ranks in wrong else "equal",
                "differs" if ranks in right else "equal",
            )
            for ranks in WORLDS
        ],
        text_columns=(1, 2, 3),
    )


def _told(value: Any) -> str:
    """A value in a few words: the first entries of a long list."""
    if not isinstance(value, list):
        return f"{value:,.6g}"
    first = ", ".join(f"{item:.3g}" for item in value[:8])
    return first if len(value) <= 8 else f"{first}, … ({len(value)} in all, {len(set(value))} different)"


def _same(expected: Any, got: Any) -> bool:
    if isinstance(expected, list):
        return len(expected) == len(got) and all(map(_same, expected, got))
    if isinstance(expected, float):
        return math.isclose(expected, got, rel_tol=1e-12)
    return bool(expected == got)


def dealt(items: Sequence[Any], ranks: int) -> list[list[Any]]:
    """Contiguous shares, the first ones longer by one where the number doesn't divide."""
    size, more = divmod(len(items), ranks)
    starts = [rank * size + min(rank, more) for rank in range(ranks + 1)]
    return [list(items[a:b]) for a, b in pairwise(starts)]
