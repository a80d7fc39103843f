"""Typical wrong answers, each with what the grader must say of it.

Files ``wrong/ID/*.py`` are whole answers; their first line names what the grader must say. ``wrong/ID.toml``
has a table for each wrong answer: ``says``, and ``edits``, pairs of a text of the solution and what replaces
it.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

from pdtlib import exercises

FOLDER = Path(__file__).parent / "wrong"
MARK = "# says: "


@dataclass(frozen=True)
class Wrong:
    id: str
    name: str
    says: str
    source: str

    def __str__(self) -> str:
        return f"{self.id}-{self.name}"


def wrong_answers() -> list[Wrong]:
    """All of them, in the order of their names."""
    found = []
    for path in FOLDER.glob("*/*.py"):
        source = path.read_text(encoding="utf-8")
        first = source.partition("\n")[0]
        assert first.startswith(MARK), f"{path} must start with {MARK!r}"
        found.append(Wrong(path.parent.name, path.stem, first.removeprefix(MARK), source))
    for path in FOLDER.glob("*.toml"):
        solution = exercises.get(path.stem).solution
        for name, table in tomllib.loads(path.read_text(encoding="utf-8")).items():
            found.append(Wrong(path.stem, name, table["says"], edited(solution, table["edits"])))
    return sorted(found, key=lambda wrong: (wrong.id, wrong.name))


def edited(solution: str, edits: list[list[str]]) -> str:
    """The solution with each old text, which must occur once, replaced by the new one."""
    for old, new in edits:
        assert solution.count(old) == 1, f"{old!r} must occur once in the solution"
        solution = solution.replace(old, new)
    return solution
