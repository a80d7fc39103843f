"""From records of contenders to the report: ratios within rounds, medians, and a table to read."""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peers_rows import Row

LOSS_TOLERANCE = {"fp32": 2e-3, "bf16": 0.1}
"""How far a loss may lie from one process's in some twenty steps: sums in another order, bf16's rounding."""


def summarise(row: Row, records: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """One result a contender.

    Ratios are medians over the rounds of ratios within a round. The best peer is the one with the smallest
    median step among those whose losses are right.
    """
    floor = next(
        record for record in records.values() if record["entry"].floor and record["entry"].threads == 2
    )
    first = next(record for record in records.values() if record["entry"].floor)
    for record in records.values():
        if record["error"] is None:
            pairs = zip(record["losses"], first["losses"], strict=True)
            record["loss_error"] = max(abs(ours - one) for ours, one in pairs)
            record["right"] = record["loss_error"] <= LOSS_TOLERANCE[row.precision]
    peers = [
        record
        for record in records.values()
        if not record["entry"].ours and not record["entry"].floor and record.get("right")
    ]
    best = min(peers, key=lambda record: statistics.median(record["rounds"]), default=None)
    return [_result(row, name, record, floor=floor, best=best) for name, record in records.items()]


def _lines_of_code(record: dict[str, Any], floor: dict[str, Any]) -> int:
    """Lines of the Python functions that a step calls and one process's step does not."""
    return sum(n for name, n in record["functions"].items() if name not in floor["functions"])


def _result(
    row: Row, name: str, record: dict[str, Any], *, floor: dict[str, Any], best: dict[str, Any] | None
) -> dict[str, Any]:
    entry = record["entry"]
    result: dict[str, Any] = {
        "name": f"{row.name}: {name}",
        "row": row.name,
        "contender": name,
        "pdtlib": entry.ours,
        "floor": entry.floor,
    }
    if record["error"] is not None:
        return result | {"error": _last_line(record["error"])}
    rounds = record["rounds"]
    return result | {
        "step_s": statistics.median(rounds),
        "spread": (max(rounds) - min(rounds)) / statistics.median(rounds),
        "ratio_to_one_process": _ratio(rounds, floor["rounds"]),
        "ratio_to_best_peer": None if best is None or entry.floor else _ratio(rounds, best["rounds"]),
        "best_peer": None if best is None else best["entry"].name,
        "cpu_s": statistics.median(record["cpu_s"]),
        "peak_bytes": record["peak_bytes"],
        "state_bytes": record["state_bytes"],
        "wire_bytes": record["wire_bytes"],
        "python_calls": record["python_calls"],
        "lines_of_code": _lines_of_code(record, floor),
        "loss_error": record["loss_error"],
        "right": record["right"],
    }


def _last_line(error: str) -> str:
    """What a rank's log says last, which is the exception."""
    return [line.strip() for line in error.splitlines() if line.strip()][-1].replace("|", "/")[:200]


def _ratio(one: Sequence[float], other: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(one, other, strict=True))


HEADER = (
    "| contender | step / one process | step / best peer | spread | CPU s | peak MB | states MB | wire MB | "
    "Python calls | lines | loss error |\n|---|---|---|---|---|---|---|---|---|---|---|"
)
LEGEND = """\
Ratios are medians of ratios within a round; below 1 is faster. `one process` has two threads unless it \
says one, the ranks have one each. The best peer is the one with the smallest median step whose losses are \
right. Spread is that of the rounds. CPU seconds are those of all ranks in a step. Peak memory is that of \
the fullest rank, over what it had before the model was built; states are its parameters, gradients and \
optimizer states. Wire bytes are those of all ranks in a step. Lines are those of the Python functions \
that a step calls and one process's step does not; what is written in C++ is not counted. On 4 ranks a \
row of the kind 3d has no replicas: it is pp × tp. Loss error is the largest difference from one process's \
loss in any step. Where pdtlib is behind, [the notes](../NOTES.md#where-a-row-may-miss-and-why) say by what \
profile and for what reason."""


def write(
    out: Path,
    records: Sequence[dict[str, Any]],
    *,
    device: str,
    about: dict[str, Any],
    left_out: Sequence[str] = (),
) -> None:
    """Write ``peers-<device>.json`` and ``.md`` into ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    about = {
        "date": datetime.date.today().isoformat(),
        "processors": _processors(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        **about,
        "rows_left_out": list(left_out),
    }
    (out / f"peers-{device}.json").write_text(
        json.dumps({"about": about, "rows": list(records)}, indent=1) + "\n"
    )
    lines = [
        "# pdtlib beside its peers",
        "",
        f"{about['date']}, {about['processors']}, torch {about['torch']}, {about['rounds']} rounds of "
        f"{about['steps_in_a_round']} steps; load average at the start: {about['load_at_start']:.1f}; "
        f"measured in {about['runs']} run{'s' if about['runs'] > 1 else ''} of the program.",
        "",
        LEGEND,
    ]
    if left_out:
        lines += ["", f"Not measured: {'; '.join(left_out)}."]
    for row in dict.fromkeys(record["row"] for record in records):
        lines += ["", f"## {row}", "", HEADER]
        lines += [_line(record) for record in records if record["row"] == row]
    (out / f"peers-{device}.md").write_text("\n".join(lines) + "\n")


def _line(record: dict[str, Any]) -> str:
    name = f"**{record['contender']}**" if record["pdtlib"] else record["contender"]
    if "error" in record:
        return f"| {name} | failed: {record['error']} |" + " |" * 9
    beside = record["ratio_to_best_peer"]
    cells = [
        name,
        f"{record['ratio_to_one_process']:.2f}",
        "" if beside is None else f"{beside:.2f}",
        f"{record['spread']:.0%}",
        f"{record['cpu_s']:.2f}",
        *(f"{record[key] / 1e6:.0f}" for key in ("peak_bytes", "state_bytes", "wire_bytes")),
        f"{record['python_calls']:,}",
        f"{record['lines_of_code']:,}",
        f"{record['loss_error']:.1e}" + ("" if record["right"] else " **wrong**"),
    ]
    return f"| {' | '.join(cells)} |"


def _processors() -> str:
    count = len(os.sched_getaffinity(0))
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return f"{count} × {line.partition(':')[2].strip()}"
    return f"{count} × {platform.machine()}"
