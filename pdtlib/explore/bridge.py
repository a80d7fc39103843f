"""The functions that the page calls in the reader's browser, and the one door through which it calls them.

Text in, text out: a call is a module, a function's name and its keyword arguments as JSON; the answer is
``{"ok": result}`` or ``{"error": {"type", "message", "field", "traceback"}}``.
"""

from __future__ import annotations

import importlib
import json
import traceback
from typing import Any


def call(module: str, name: str, arguments: str) -> str:
    """Call ``module.name(**arguments)`` of pdtlib; never raises, every exception becomes an ``error``."""
    try:
        if module.split(".")[0] != "pdtlib":
            raise ValueError(f"module: {module!r} is not a part of pdtlib")
        function = getattr(importlib.import_module(module), name)
        return json.dumps({"ok": function(**json.loads(arguments))}, allow_nan=False, ensure_ascii=False)
    except BaseException as error:  # SystemExit and KeyboardInterrupt of a reader's code included
        return json.dumps({"error": describe(error)}, ensure_ascii=False)


def describe(error: BaseException) -> dict[str, Any]:
    """What a reader is told about an exception: its type, its text, the field it names, where it arose."""
    problems = getattr(error, "problems", None)
    field = getattr(error, "field", None) or (problems[0].field if problems else None)
    return {
        "type": type(error).__name__,
        "message": str(error),
        "field": field,
        "traceback": "".join(traceback.format_exception(error)),
    }


def view(id: str, state: dict[str, Any]) -> dict[str, Any]:
    """The view of an explorer in a state: texts or values by control name; the rest keeps its default."""
    from pdtlib.explore.catalog import get

    return get(id).view_of(state).to_dict()


def compare(id: str, state: dict[str, Any], pinned: dict[str, Any]) -> dict[str, Any]:
    """The table of what changed from ``pinned`` to ``state``."""
    from pdtlib.explore.catalog import get

    return get(id).compare(state, pinned).to_dict()


def adopt(id: str, job: str) -> dict[str, str]:
    """The state of an explorer nearest to a job (TOML text), as texts by control name."""
    from pdtlib.explore.catalog import get

    return get(id).adopt(job)
