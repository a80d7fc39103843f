"""What a lab predicted beside what it measured: rows, their table, and on which ranks they are off."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pdtlib.engine.dist import shutdown
from pdtlib.engine.mesh import Group


@dataclass(frozen=True)
class Row:
    """One quantity of one part of a lab. ``tolerance`` is how far ``measured`` may lie from ``predicted``.

    Counts and bytes have tolerance 0. A difference to one process is predicted to be 0.
    """

    part: str
    quantity: str
    predicted: float
    measured: float
    tolerance: float = 0.0

    @property
    def error(self) -> float:
        return self.measured - self.predicted

    @property
    def right(self) -> bool:
        return abs(self.error) <= self.tolerance

    def texts(self) -> tuple[str, str, str]:
        """Predicted, measured and error. A difference within its tolerance is only said to be so.

        Its digits are rounding, and differ from machine to machine.
        """
        numbers = (self.predicted, self.measured, self.error)
        if self.tolerance == 0:
            predicted, measured, error = (f"{number:,.0f}" for number in numbers)
        elif self.predicted == 0:
            below = f"< {self.tolerance:.0e}"
            predicted, measured, error = "0", below if self.right else f"{self.measured:.1e}", ""
        else:
            predicted, measured, error = (f"{number:.3f}" for number in numbers)
        return predicted, measured, error

    def report(self) -> dict[str, Any]:
        """The row as a lab's JSON has it."""
        return {**asdict(self), "error": self.error, "right": self.right}


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """The rows as a table of text, under a heading for each part."""
    width = max(len(row.quantity) for row in rows)
    part = ""
    for row in rows:
        if row.part != part:
            part = row.part
            yield ""
            yield part
            yield f"  {'':{width}s} {'predicted':>12s} {'measured':>12s} {'error':>9s}"
        predicted, measured, error = row.texts()
        wrong = "" if row.right else "  NOT as predicted"
        line = f"  {row.quantity:{width}s} {predicted:>12s} {measured:>12s} {error:>9s}{wrong}"
        yield line.rstrip()


def random(*shape: int, seed: int, device: torch.device) -> torch.Tensor:
    """The same numbers on every rank, in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(device)


def relative_difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """Largest difference of two tensors, over the largest value of the second."""
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).abs().max() / b.abs().max().clamp_min(1e-30))


def ranks_off(rows: Sequence[Row], group: Group) -> list[int]:
    """The ranks of the group on which a row is not as predicted; every rank calls it."""
    wrong = not all(row.right for row in rows)
    if group.size == 1:
        return [0] if wrong else []
    found: list[bool] = [False] * group.size
    dist.all_gather_object(found, wrong, group=group.process_group)
    return [rank for rank, is_wrong in enumerate(found) if is_wrong]


def conclude(
    rows: Sequence[Row], group: Group, *, heading: str, report: Mapping[str, Any], path: Path | None
) -> int:
    """End a lab; every rank calls it. Rank 0 prints the rows below ``heading`` and writes them to ``path``.

    Returns the exit code: 1 where a row is not as predicted on any rank.
    """
    off = ranks_off(rows, group)
    shutdown()
    if group.rank == 0:
        print(heading)
        print(*lines(rows), sep="\n")
        if path:
            whole = {**report, "rows": [row.report() for row in rows], "ranks_off": off}
            path.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
        print()
        print(f"NOT as predicted on ranks {off}" if off else f"as predicted on all {group.size} ranks")
    return 1 if off else 0
