"""Typical wrong answers: files of ``wrong/ID/``, whose first line names what the grader must say."""

from dataclasses import dataclass
from pathlib import Path

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
    for path in sorted(FOLDER.glob("*/*.py")):
        source = path.read_text(encoding="utf-8")
        first = source.partition("\n")[0]
        assert first.startswith(MARK), f"{path} must start with {MARK!r}"
        found.append(Wrong(path.parent.name, path.stem, first.removeprefix(MARK), source))
    return found
