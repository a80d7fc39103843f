"""What a class gets: one file a task, without its answer, a README, and a list of the tasks as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pdtlib import exercises
from pdtlib.book import lab as labs
from pdtlib.book.assign.starter import assigned, emptied

LIST = "assignment.json"


@dataclass(frozen=True, kw_only=True)
class Task:
    """One thing to hand in. ``id`` is an exercise's, or ``lab-NN``; ``file`` is what it is handed in as."""

    id: str
    title: str
    file: str
    points: float = 1.0

    @property
    def lab(self) -> str | None:
        """The lab's number; None for an exercise."""
        return self.id.removeprefix("lab-") if self.id.startswith("lab-") else None


def tasks(names: Sequence[str]) -> tuple[Task, ...]:
    """The tasks of labs (``lab-02``), exercises (``ch02-zero3``) and whole chapters (``02``), in that order.

    Raises ``ValueError`` for a name that is none of them, and where none is given.
    """
    found: dict[str, Task] = {}
    for name in names:
        for task in _tasks_of(name):
            found.setdefault(task.id, task)
    if not found:
        raise ValueError(f"tasks={tuple(names)}; valid: {_valid()}")
    return tuple(found.values())


def _tasks_of(name: str) -> list[Task]:
    if re.fullmatch(r"\d{1,2}", name):
        number = name.zfill(2)
        of_chapter = [each for each in exercises.ids() if each.startswith(f"ch{number}-")]
        has_lab = [f"lab-{number}"] if number in _labs() else []
        if of_chapter or has_lab:
            return [task for each in (*of_chapter, *has_lab) for task in _tasks_of(each)]
    elif name in exercises.ids():
        file = f"{name.replace('-', '_')}.py"
        return [Task(id=name, title=exercises.get(name).title, file=file)]
    elif name.startswith("lab-") and name.removeprefix("lab-") in _labs():
        number = name.removeprefix("lab-")
        readme = (labs.find(number).parent / "README.md").read_text(encoding="utf-8")
        title = readme.splitlines()[0].removeprefix("# ")
        return [Task(id=name, title=title, file=f"lab_{number}.py")]
    raise ValueError(f"task={name!r}; valid: {_valid()}")


def _labs() -> dict[str, tuple[str, ...]]:
    """The labs that assign something, by number, with the functions that they assign."""
    found = {}
    for path in sorted(labs.ROOT.glob("labs/[0-9]*_*/lab.py")):
        if names := assigned(path.read_text(encoding="utf-8")):
            found[path.parent.name.split("_")[0]] = names
    return found


def _valid() -> str:
    of_labs = ", ".join(f"lab-{number}" for number in _labs())
    return f"a chapter's number such as 02; a lab ({of_labs}); an exercise ({', '.join(exercises.ids())})"


def starter(task: Task) -> str:
    """The file that a student begins with."""
    if task.lab is None:
        return exercises.get(task.id).starter
    source = labs.find(task.lab).read_text(encoding="utf-8")
    return emptied(source, assigned(source))


def solution(task: Task) -> str:
    """The file that gets every point."""
    if task.lab is None:
        return exercises.get(task.id).solution
    return labs.find(task.lab).read_text(encoding="utf-8")


def hand_out(names: Sequence[str], out: Path, *, with_solutions: bool = False) -> tuple[Task, ...]:
    """Write the assignment into ``out``, an empty folder or none yet; with the answers if asked.

    Raises ``ValueError`` for unknown names and for a folder that holds something.
    """
    found = tasks(names)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"out={out}: valid: a folder that is empty, or does not exist yet")
    out.mkdir(parents=True, exist_ok=True)
    listed = {"tasks": [asdict(task) for task in found]}
    (out / LIST).write_text(json.dumps(listed, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (out / "README.md").write_text("\n".join(_readme(found)), encoding="utf-8")
    for task in found:
        (out / task.file).write_text(starter(task), encoding="utf-8")
        if with_solutions:
            (out / "solutions").mkdir(exist_ok=True)
            (out / "solutions" / task.file).write_text(solution(task), encoding="utf-8")
    return found


def read_assignment(folder: Path) -> tuple[Task, ...]:
    """The tasks of a folder that :func:`hand_out` has written. Raises ``ValueError`` if it is none."""
    try:
        listed: dict[str, Any] = json.loads((folder / LIST).read_text(encoding="utf-8"))
        found = tuple(Task(**task) for task in listed["tasks"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"assignment={folder}: valid: a folder with an {LIST} ({error})") from None
    for task in found:
        _tasks_of(task.id)
    return found


def _readme(found: tuple[Task, ...]) -> list[str]:
    text = [
        "# Assignment",
        "",
        "Hand in this folder with each file completed. Files are graded with hidden sizes; checks that pass",
        "count, also where others fail. Install `pdtlib` first; then each file can be tried as often as you "
        "like:",
        "",
    ]
    for task in found:
        text += [f"## {task.title}", "", f"File `{task.file}`, {task.points:g} point(s).", ""]
        if task.lab is None:
            text += [exercises.get(task.id).prompt.strip(), "", f"    pdt grade {task.id} {task.file}", ""]
            continue
        folder = labs.find(task.lab).parent.relative_to(labs.ROOT)
        names = ", ".join(f"`{name}`" for name in _labs()[task.lab])
        text += [
            f"Write {names}: the rest of the lab is there. `{folder}/README.md` says what the lab does, and",
            f"`{folder}/expected.txt` what it prints when all is right; your lab must print those lines.",
            "",
            f"    pdt assign check {task.id} {task.file}",
            "",
        ]
    return text
