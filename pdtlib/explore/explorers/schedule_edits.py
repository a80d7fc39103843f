"""Edits of a schedule's table as a reader types them: ``1.3=B0`` puts an action, ``0.4<>5`` exchanges two."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

from pdtlib.explore.controls import ControlError
from pdtlib.figures.words import say
from pdtlib.plan.schedule import Act, Schedule

_EDIT = re.compile(r"(\d{1,3})\.(\d{1,4})\s*(?:=\s*(\S+)|<>\s*(\d{1,4}))")


class Edit(NamedTuple):
    """On stage ``stage``, cell ``cell``: put ``act``, or exchange with cell ``other`` of the same stage."""

    stage: int
    cell: int
    act: Act | None
    other: int | None


def read_edits(text: str) -> list[Edit]:
    """The edits of a line, parted by commas. Raises ValueError, with an example, for what is none."""
    found = []
    for part in filter(None, map(str.strip, text.split(","))):
        match = _EDIT.fullmatch(part)
        if match is None:
            raise ValueError(say("player.edit_form", part=part))
        stage, cell, act, other = match.groups()
        found.append(
            Edit(int(stage), int(cell), Act.parse(act) if act else None, int(other) if other else None)
        )
    return found


def edited(schedule: Schedule, text: str, *, control: str) -> Schedule:
    """The schedule with the edits made, legal or not; overlapped pairs are dissolved.

    Raises ControlError, with the valid stages or cells, for a cell that isn't there.
    """
    edits = read_edits(text)
    if not edits:
        return schedule
    programs = [list(program) for program in schedule.programs]
    for edit in edits:
        if edit.stage >= len(programs):
            raise ControlError(control, say("player.edit_stage", stage=edit.stage, last=len(programs) - 1))
        program = programs[edit.stage]
        for cell in (edit.cell, edit.cell if edit.other is None else edit.other):
            if cell >= len(program):
                raise ControlError(
                    control, say("player.edit_cell", stage=edit.stage, cell=cell, last=len(program) - 1)
                )
        if edit.act is not None:
            program[edit.cell] = edit.act
        elif edit.other is not None:
            program[edit.cell], program[edit.other] = program[edit.other], program[edit.cell]
    return replace(schedule, programs=tuple(map(tuple, programs)), overlapped=frozenset())
