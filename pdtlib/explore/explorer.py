"""An explorer: controls, and a function from their values to a view.

The same definition is shown in JupyterLab (:mod:`pdtlib.explore.live`) and on the static page
(:mod:`pdtlib.explore.page`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pdtlib.explore.compare import differences
from pdtlib.explore.controls import Control, ControlError
from pdtlib.explore.view import Table, View
from pdtlib.plan.job import Job, JobError, loads

Values = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Explorer:
    """``view`` maps the controls' values to a view; ``adopt_job`` maps a job to the values that fit it best.

    ``together`` names controls whose joint moves also stand in the build-time table, such as a step and what
    it steps through; with every group of its controls the table holds all that an explorer can show.
    """

    id: str
    title: str
    lead: str
    controls: tuple[Control, ...]
    view: Callable[[Values], View]
    adopt_job: Callable[[Job], dict[str, Any]] | None = None
    together: tuple[tuple[str, ...], ...] = ()

    def control(self, name: str) -> Control:
        """The control of that name; raises ValueError with the names there are."""
        for control in self.controls:
            if control.name == name:
                return control
        valid = ", ".join(control.name for control in self.controls)
        raise ValueError(f"{self.id} has no control {name!r}; its controls are {valid}")

    def state(self, given: Values | None = None) -> dict[str, str]:
        """The whole state as keys by control name; what ``given`` omits keeps its default.

        Raises ControlError for a value that its control cannot take, ValueError for a name without a control.
        """
        given = given or {}
        for name in given:
            self.control(name)
        state = {}
        for control in self.controls:
            chosen = given.get(control.name, control.default)
            value = control.parse(chosen)
            state[control.name] = control.key(chosen if isinstance(chosen, str) else value)
        return state

    def view_of(self, given: Values | None = None) -> View:
        """The view in a state. Raises ControlError when a value, or the job it leads to, is not valid."""
        state = self.state(given)
        values = {control.name: control.parse(state[control.name]) for control in self.controls}
        try:
            return self.view(values)
        except JobError as error:
            raise self._control_error(error) from error

    def compare(self, given: Values, pinned: Values) -> Table:
        """What changed from the state ``pinned`` to the state ``given``."""
        return differences(self.view_of(given), self.view_of(pinned))

    def adopt(self, toml: str) -> dict[str, str]:
        """The state nearest to a job; raises ValueError if the job is not valid or not taken here."""
        if self.adopt_job is None:
            raise ValueError(f"{self.id} does not take a job")
        return self.state(self.adopt_job(loads(toml, format="toml")))

    def _control_error(self, error: JobError) -> ControlError:
        by_field = {control.job_field: control.name for control in self.controls if control.job_field}
        first, *others = error.problems
        name = by_field.get(first.field, "")
        if name:  # the message stands beside the control, so it need not name the field
            first = replace(first, field=self.control(name).label)
        return ControlError(name, "\n".join(map(str, (first, *others))))
