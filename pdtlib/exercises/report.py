"""What a grader says: one check a question asked, and the report that gathers them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Check:
    """One question asked of the reader's code. ``message`` teaches when the answer was wrong."""

    name: str
    passed: bool
    message: str = ""
    expected: str = ""
    got: str = ""

    def __post_init__(self) -> None:
        if self.passed:
            object.__setattr__(self, "message", "")


@dataclass(frozen=True, kw_only=True)
class Report:
    """All checks of one grading. The same ``seed`` draws the same hidden sizes again."""

    id: str
    seed: int
    checks: tuple[Check, ...]
    output: str = ""

    @property
    def passed(self) -> bool:
        return bool(self.checks) and all(check.passed for check in self.checks)

    @property
    def score(self) -> float:
        """Share of the checks that passed, 0 to 1."""
        return sum(check.passed for check in self.checks) / len(self.checks) if self.checks else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, with the derived ``passed`` and ``score``."""
        return {**asdict(self), "passed": self.passed, "score": self.score}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Report":
        """Undo :meth:`to_dict`."""
        return cls(
            id=values["id"],
            seed=values["seed"],
            checks=tuple(Check(**check) for check in values["checks"]),
            output=values["output"],
        )

    def text(self) -> str:
        """The report for a terminal: a line a check, the lesson below each that failed."""
        lines = []
        for check in self.checks:
            lines.append(f"{'pass' if check.passed else 'FAIL'}  {check.name}")
            if not check.passed:
                for label, value in (("expected", check.expected), ("got", check.got)):
                    if value:
                        lines.append(f"      {label:<8}  {value}")
                lines += [f"      {line}".rstrip() for line in check.message.splitlines()]
        if self.output:
            lines += ["", "What your code printed:", *(f"  {line}" for line in self.output.splitlines())]
        done = sum(check.passed for check in self.checks)
        lines += ["", f"{self.id}: {done} of {len(self.checks)} checks passed (seed {self.seed})"]
        return "\n".join(lines)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """IPython's display."""
        printer.text(self.text())

    def __str__(self) -> str:
        return self.text()
