"""A simulated schedule drawn to scale in plain text."""

from __future__ import annotations

from pdtlib.plan.schedule.simulate import Timeline


def picture(timeline: Timeline, *, columns: int = 0) -> str:
    """The timeline to scale, one line per stage: a cell is the shortest action's time, ``..`` is a wait.

    Times that are no multiples of the shortest are rounded to the nearest cell. Lines longer than ``columns``
    characters are cut.

    >>> from pdtlib.plan.schedule import build, simulate
    >>> print(picture(simulate(build("zb-h1", stages=2, microbatches=2))))
    stage 0  F0 F1 .. B0 W0 B1 W1
    stage 1  .. F0 B0 F1 B1 W0 W1
    """
    schedule = timeline.schedule
    lengths = [
        end - start
        for starts, ends in zip(timeline.start, timeline.end, strict=True)
        for start, end in zip(starts, ends, strict=True)
    ]
    cell = min(length for length in lengths if length > 0)
    width = max(len(str(act)) for program in schedule.programs for act in program)
    lines = []
    for rank, program in enumerate(schedule.programs):
        cells = ["." * width] * round(timeline.makespan / cell)
        for act, start, end in zip(program, timeline.start[rank], timeline.end[rank], strict=True):
            first = min(round(start / cell), len(cells) - 1)
            cells[first : round(end / cell)] = ["-" * width] * (round(end / cell) - first)
            cells[first] = f"{act!s:<{width}}"
        line = f"stage {rank:<{len(str(schedule.stages - 1))}}  " + " ".join(cells)
        lines.append(line if not columns or len(line) <= columns else line[: columns - 2] + " …")
    return "\n".join(lines)
