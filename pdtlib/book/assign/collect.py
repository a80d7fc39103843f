"""Many students' results as one table, a row each."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any


def collect(results: Path) -> list[dict[str, Any]]:
    """A row per result file of a folder, sorted by name: score, points, score and reason of every task.

    A file that cannot be read becomes a row with score 0 and the reason. Raises ``ValueError`` for a folder
    without results.
    """
    files = sorted(results.glob("*.json")) if results.is_dir() else []
    if not files:
        raise ValueError(f"results={results}: valid: a folder with what `pdt assign grade` has written")
    return [_row(path) for path in files]


def _row(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {
            "student": str(found["student"]),
            "score": float(found["score"]),
            "points": float(found["points"]),
            "scores": {str(task["id"]): float(task["score"]) for task in found["tasks"]},
            "reasons": {str(task["id"]): str(task["reason"]) for task in found["tasks"] if task["reason"]},
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f"{path.name} cannot be read: {type(error).__name__}: {error}"
        return {"student": path.stem, "score": 0.0, "points": 0.0, "scores": {}, "reasons": {"result": why}}


def to_csv(rows: list[dict[str, Any]]) -> str:
    """The rows as CSV; a column per task, and all reasons in the last.

    >>> row = {"student": "=ada", "score": 0.5, "points": 1.0, "scores": {"a": 0.5}, "reasons": {"a": "b"}}
    >>> print(to_csv([row]), end="")
    student,score,points,a,reasons
    '=ada,0.5,1,0.5,a: b
    """
    tasks = list(dict.fromkeys(task for row in rows for task in row["scores"]))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["student", "score", "points", *tasks, "reasons"])
    for row in rows:
        scores = [f"{row['scores'][task]:g}" if task in row["scores"] else "" for task in tasks]
        reasons = "; ".join(f"{task}: {why}" for task, why in row["reasons"].items())
        cells = [row["student"], f"{row['score']:g}", f"{row['points']:g}", *scores, reasons]
        writer.writerow([_as_text(cell) for cell in cells])
    return out.getvalue()


def _as_text(cell: str) -> str:
    """A cell that no spreadsheet takes for a formula."""
    return f"'{cell}" if cell[:1] in ("=", "+", "-", "@") else cell
