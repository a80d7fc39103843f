"""Tables as text and as CSV, both ways, and drawn as a grid.

Both forms start with a line that names the table and its layout, followed by one line per stage. In the text
form actions are parted by blanks, in CSV each has a cell; a forward and a backward that overlap are joined by
``&``.
"""

from __future__ import annotations

import csv
import io

from pdtlib.plan.schedule.actions import Act, Layout, Program, Schedule


def to_text(schedule: Schedule) -> str:
    """The table for people and for :func:`from_text`.

    >>> from pdtlib.plan.schedule import build
    >>> print(to_text(build("1f1b", stages=2, microbatches=3)), end="")
    1f1b stages=2 microbatches=3 chunks=1 layout=loop
    F0 F1 B0 F2 B1 B2
    F0 B0 F1 B1 F2 B2
    """
    return "".join(" ".join(row) + "\n" for row in (_header(schedule), *_rows(schedule)))


def from_text(text: str) -> Schedule:
    """The table that ``text`` describes, legal or not. Raises ValueError if it can't be read."""
    return _read([line.split() for line in text.splitlines()])


def to_csv(schedule: Schedule) -> str:
    """The table for spreadsheets and for :func:`from_csv`."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([_header(schedule), *_rows(schedule)])
    return out.getvalue()


def from_csv(text: str) -> Schedule:
    """The table that CSV ``text`` describes; empty cells at a row's end don't count."""
    return _read([[cell.strip() for cell in row if cell.strip()] for row in csv.reader(io.StringIO(text))])


def _header(schedule: Schedule) -> list[str]:
    layout = schedule.layout
    return [
        schedule.name,
        f"stages={layout.stages}",
        f"microbatches={schedule.microbatches}",
        f"chunks={layout.chunks}",
        f"layout={layout.kind}",
    ]


def _rows(schedule: Schedule) -> list[list[str]]:
    """Cells of each stage, an overlapped pair in one."""
    rows = []
    for rank, program in enumerate(schedule.programs):
        cells: list[str] = []
        for index, act in enumerate(program):
            if (rank, index - 1) in schedule.overlapped:
                cells[-1] += f"&{act}"
            else:
                cells.append(str(act))
        rows.append(cells)
    return rows


def _read(rows: list[list[str]]) -> Schedule:
    if not rows or len(rows[0]) != 5:
        raise ValueError(
            "first line: expected a name and stages=, microbatches=, chunks=, layout=, "
            f"not {' '.join(rows[0]) if rows else 'nothing'!r}"
        )
    name, *fields = rows[0]
    values = dict(field.partition("=")[::2] for field in fields)
    try:
        stages, microbatches, chunks = (int(values[key]) for key in ("stages", "microbatches", "chunks"))
        kind = values["layout"]
    except KeyError as missing:
        raise ValueError(f"first line: {missing} is missing") from None
    except ValueError as error:
        raise ValueError(f"first line: {error}") from None
    layout = Layout(kind=kind, stages=stages, chunks=chunks)
    programs: list[Program] = []
    overlapped: set[tuple[int, int]] = set()
    for rank, row in enumerate(rows[1:]):
        acts: list[Act] = []
        for number, cell in enumerate(row):
            try:
                together = [Act.parse(part) for part in cell.split("&")]
            except ValueError as error:
                raise ValueError(f"stage {rank}, cell {number}: {error}") from None
            overlapped |= {(rank, len(acts) + i) for i in range(len(together) - 1)}
            acts += together
        programs.append(tuple(acts))
    return Schedule(
        name=name,
        layout=layout,
        microbatches=microbatches,
        programs=tuple(programs),
        overlapped=frozenset(overlapped),
    )


def grid(schedule: Schedule, *, mark: tuple[int, int] | None = None, around: int = 12) -> str:
    """The programs as a grid, one line per stage and one column per action, with ``>`` and ``<`` about one
    cell.

    Of a long table only the ``around`` columns on either side of the marked cell are drawn, and of many
    stages only as many rows.
    """
    rank, index = mark or (0, 0)
    longest = max(map(len, schedule.programs))
    first = max(0, index - around)
    last = min(longest + 1, max(index, first) + around + 1)
    top = max(0, rank - around)
    lines = []
    for stage, program in enumerate(schedule.programs[top : rank + around + 1], start=top):
        cells = [str(act) for act in program[first:last]]
        if stage == rank and mark is not None:
            cells += [""] * (index - first + 1 - len(cells))
            cells[index - first] = f">{cells[index - first]}<"
        lines.append((f"stage {stage}", cells))
    width = max((len(cell) for _, cells in lines for cell in cells), default=1)
    title = max(len(name) for name, _ in lines)
    cut_left, cut_right = ("… " if first else ""), (" …" if last < longest else "")
    return "\n".join(
        f"{name:<{title}}  {cut_left}" + " ".join(f"{cell:^{width}}" for cell in cells).rstrip() + cut_right
        for name, cells in lines
    )
