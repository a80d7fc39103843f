"""Comparing an answer with the expected value: exact types, exact integers, floats in float64.

Types are compared first, so that an object whose ``__eq__`` always says yes does not pass.
"""

import math
from collections.abc import Sequence

from pdtlib.exercises.report import Check

SHOWN_VALUES = 8


def shown(value: object) -> str:
    """``value`` as one short line; long lists are cut, integers get thousands separators."""
    if type(value) is int:
        return f"{value:,}"
    if type(value) is float:
        return f"{value:.17g}"
    if isinstance(value, list | tuple) and all(type(item) in (int, float) for item in value):
        items = ", ".join(f"{item:.6g}" for item in value[:SHOWN_VALUES])
        more = f", … ({len(value)} values)" if len(value) > SHOWN_VALUES else ""
        return f"[{items}{more}]"
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "…"


def same_int(name: str, *, expected: int, got: object, message: str = "") -> Check:
    """Pass when ``got`` is an ``int`` (not a bool, not a float) equal to ``expected``."""
    if type(got) is int:
        return Check(
            name=name, passed=got == expected, message=message, expected=shown(expected), got=shown(got)
        )
    return Check(
        name=name,
        passed=False,
        expected=shown(expected),
        got=f"{shown(got)}, a {type(got).__name__}",
        message=wrong_type(got, "an int"),
    )


def wrong_type(got: object, wanted: str) -> str:
    """Why an answer of this type cannot be right, with the usual slip behind it."""
    if got is None:
        return f"The function returned None, not {wanted}. Is a return statement missing?"
    if type(got) is float and wanted == "an int":
        return "A count is exact, so it is an int: use // where you divide, and integer constants."
    return f"The function returned a {type(got).__name__}, not {wanted}."


def close(expected: float, got: object, *, tolerance: float) -> bool:
    """Whether ``got`` is a finite float or int within ``tolerance`` times ``max(1, abs(expected))``."""
    if type(got) is not int and type(got) is not float:
        return False
    return math.isfinite(got) and abs(got - expected) <= tolerance * max(1.0, abs(expected))


def same_float(
    name: str, *, expected: float, got: object, tolerance: float = 1e-12, message: str = ""
) -> Check:
    """Pass when ``got`` is a number within ``tolerance`` of ``expected``."""
    if type(got) not in (int, float):
        message = wrong_type(got, "a float")
    return Check(
        name=name,
        passed=close(expected, got, tolerance=tolerance),
        message=message,
        expected=shown(expected),
        got=shown(got),
    )


def differing(expected: Sequence[float], got: object, *, tolerance: float) -> int | None:
    """First index at which ``got`` differs; -1 when it is no list of that length; None when it agrees."""
    if not isinstance(got, list | tuple) or len(got) != len(expected):
        return -1
    for index, (want, have) in enumerate(zip(expected, got, strict=True)):
        if not close(want, have, tolerance=tolerance):
            return index
    return None
