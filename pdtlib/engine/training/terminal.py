"""What a person sees of a run: a progress bar on a terminal, plain lines everywhere else."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

LINES = 20
"""About how many lines a whole run prints where there is no terminal."""


class _Console(Console):
    """Leaves the cursor alone, since a rank that is killed could not bring it back."""

    def show_cursor(self, show: bool = True) -> bool:
        return False


class Terminal:
    """Progress of steps ``first`` ... ``steps - 1``; one rank has one."""

    def __init__(self, *, first: int, steps: int) -> None:
        self.first, self.steps = first, steps
        console = _Console(file=sys.stdout)
        self._bar: Progress | None = None
        if console.is_terminal and not console.is_dumb_terminal:
            self._bar = Progress(
                MofNCompleteColumn(),
                BarColumn(),
                TextColumn("{task.description}"),
                TimeRemainingColumn(),
                console=console,
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=steps, completed=first)
        self._last_line_s = 0.0

    def step(self, step: int, *, loss: float, tokens_per_s: float, comm_share: float) -> None:
        """Show that ``step`` (counted from 0) is done."""
        text = f"loss {loss:.4f}  {tokens_per_s:,.0f} tokens/s  {comm_share:.0%} waiting for messages"
        if self._bar is not None:
            self._bar.update(self._task, completed=step + 1, description=text)
            return
        every = max(1, (self.steps - self.first) // LINES)
        if (step - self.first) % every == 0 or step == self.steps - 1 or self._quiet_for(30.0):
            self.say(f"step {step + 1}/{self.steps}  {text}")

    def _quiet_for(self, seconds: float) -> bool:
        return time.monotonic() - self._last_line_s > seconds

    def say(self, text: str) -> None:
        """Print a line."""
        self._last_line_s = time.monotonic()
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)
        else:
            print(text, flush=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()
