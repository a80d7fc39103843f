"""A failed build says why in its last lines, and fails again until the cause is mended.

Sphinx prints a warning where it happens, far above the end of a long output, and myst-nb writes the
traceback of a cell to a file in the site's folder: in another machine's log neither is at hand. Here
both are printed once more when the build ends. Sphinx also takes a page for done once it has been read,
so that the next build would pass with a chapter that has no outputs; pages whose notebook failed are
read again.
"""

from __future__ import annotations

import atexit
import logging
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sphinx.util.logging import NAMESPACE, WarningLogRecordTranslator, WarningSuppressor

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

TRACEBACK_LINES = 40


class Warnings(logging.Handler):
    """Keeps what Sphinx warns of, less what the configuration suppresses."""

    def __init__(self, app: Sphinx) -> None:
        super().__init__(logging.WARNING)
        self.addFilter(WarningSuppressor(app))
        self.addFilter(WarningLogRecordTranslator(app))
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a warning as one line with the place it is about."""
        location = getattr(record, "location", None)
        self.lines.append(f"{location}: {record.getMessage()}" if location else record.getMessage())


def setup(app: Sphinx) -> None:
    """Listen to Sphinx's warnings, and print them and the failed cells when the program ends."""
    warnings = Warnings(app)
    logging.getLogger(NAMESPACE).addHandler(warnings)
    app.connect("env-get-outdated", _failed_pages)
    # Not at build-finished: jupyter-book prints a closing message of its own after that.
    atexit.register(lambda: _print(warnings.lines, app.env))


def _tracebacks(env: BuildEnvironment) -> Iterator[tuple[str, str]]:
    """The pages whose notebook failed, with the traceback."""
    for page, data in getattr(env, "nb_metadata", {}).items():
        if text := (data.get("exec_data") or {}).get("traceback"):
            yield page, text


def _failed_pages(
    app: Sphinx, env: BuildEnvironment, added: object, changed: object, removed: object
) -> list[str]:
    return [page for page, _ in _tracebacks(env)]


def _print(lines: list[str], env: BuildEnvironment) -> None:
    if not lines:
        return
    print(
        f"{len(lines)} warning{'s' * (len(lines) > 1)} of this build, each an error:",
        *lines,
        sep="\n  ",
        file=sys.stderr,
    )
    for page, text in _tracebacks(env):
        end = text.rstrip().splitlines()[-TRACEBACK_LINES:]
        print(f"{page}, the end of the traceback:", *end, sep="\n  ", file=sys.stderr)
