"""A collective between its start and its end."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from pdtlib.engine.mesh import Group


class Pending:
    """A collective under way. Its buffers must be left alone until :meth:`wait` has returned."""

    def __init__(self, group: Group, name: str, works: Sequence[Any]) -> None:
        self._group, self._name, self._works = group, name, works
        self._then: list[Callable[[], Any]] = []
        timeline = group.timeline
        lane = f"communication {group.axis}"
        self._token = timeline.begin(lane, name) if timeline is not None and works else None

    def then(self, action: Callable[[], Any]) -> "Pending":
        """Run ``action`` in :meth:`wait`, once the messages have arrived; return self."""
        self._then.append(action)
        return self

    def wait(self) -> None:
        """Return when the result is in place (on a GPU: when the current stream will wait for it)."""
        works, self._works = self._works, ()
        if works:
            group, timeline = self._group, self._group.timeline
            exposed = None if timeline is None else timeline.begin(f"wait {group.axis}", self._name)
            group.waits = self._name, time.monotonic()  # for a watchdog
            try:
                for work in works:
                    work.wait()
            finally:
                group.waits = None
                if timeline is not None:
                    timeline.end(exposed)
            if self._token is not None:
                timeline.end(self._token)
        actions, self._then = self._then, []
        for action in actions:
            action()
