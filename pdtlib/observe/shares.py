"""The trace of a run, read back from its file."""

from __future__ import annotations

import json
from pathlib import Path

from pdtlib.plan.overlap import Span
from pdtlib.plan.step_shares import spans_of


def read_perfetto(path: Path) -> dict[int, list[Span]]:
    """Rank -> spans of a ``trace.json``. Raises ``ValueError`` for a file that is none."""
    try:
        return spans_of(json.loads(path.read_text(encoding="utf-8"))["traceEvents"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{path} is no trace that pdt run writes: {error}") from error
