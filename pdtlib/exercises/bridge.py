"""What the page calls in the browser's Python."""

from typing import Any

from pdtlib.exercises.catalog import get


def grade(id: str, source: str) -> dict[str, Any]:
    """Grade the editor's text; the report as plain values."""
    return get(id).grade(source).to_dict()
