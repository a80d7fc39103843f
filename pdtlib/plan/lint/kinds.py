"""What kinds of JSON value a key takes, as generous as DeepSpeed's classes are.

A whole number may be a text of digits or a float without a fraction, a flag may be a word such as "yes", and
"auto" leaves the usual value standing.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

FLAG_WORDS = ("true", "false", "yes", "no", "on", "off", "t", "f", "y", "n", "0", "1")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """``name`` is what readers see; ``low`` and ``high`` bound numbers, ``above`` and ``below`` strictly.

    ``optional``: null will do. ``auto``: so will "auto". ``lax``: a text may stand for a number or a flag.
    ``flags``: true and false count as numbers. ``finite``: infinity does not.
    """

    name: str
    low: float | None = None
    above: float | None = None
    high: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()
    optional: bool = False
    auto: bool = True
    lax: bool = True
    flags: bool = True
    finite: bool = False

    def wrong(self, value: Any) -> str:
        """Why the value will not do; empty if it will."""
        if (value is None and self.optional) or (value == "auto" and self.auto):
            return ""
        if not _CHECKS[self.name](self, value):
            hint = f" ({', '.join(self.choices)})" if self.choices else ""
            return f"must be of kind {self.name}{hint}, not {json.dumps(value)}"
        return self._out_of_range(value) if self.name in ("int", "float") else ""

    def _out_of_range(self, value: Any) -> str:
        number = float(value)
        if self.finite and math.isinf(number):
            return f"must be finite, not {value}"
        if self.low is not None and number < self.low:
            return f"must be at least {self.low:g}, not {value}"
        if self.above is not None and number <= self.above:
            return f"must be more than {self.above:g}, not {value}"
        if self.high is not None and number > self.high:
            return f"must be at most {self.high:g}, not {value}"
        if self.below is not None and number >= self.below:
            return f"must be less than {self.below:g}, not {value}"
        return ""


def _is_number(kind: Kind, value: Any) -> bool:
    if isinstance(value, bool):
        return kind.flags
    if isinstance(value, int | float):
        return not math.isnan(value)
    if not (kind.lax and isinstance(value, str)):
        return False
    try:
        float(value)
    except ValueError:
        return False
    return True


def _is_whole(kind: Kind, value: Any) -> bool:
    if isinstance(value, str):
        return kind.lax and value.strip().lstrip("+-").isdigit()
    return _is_number(kind, value) and float(value).is_integer()


def _is_flag(kind: Kind, value: Any) -> bool:
    if isinstance(value, str):
        return kind.lax and value.lower() in FLAG_WORDS
    return isinstance(value, bool | int | float) and value in (0, 1)


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


_CHECKS: dict[str, Callable[[Kind, Any], bool]] = {
    "any": lambda kind, value: True,
    "int": _is_whole,
    "float": _is_number,
    "bool": _is_flag,
    "text": lambda kind, value: isinstance(value, str),
    "choice": lambda kind, value: isinstance(value, str) and value in kind.choices,
    "table": lambda kind, value: isinstance(value, Mapping),
    "list": lambda kind, value: isinstance(value, list),
    "list of texts": lambda kind, value: _is_list_of_texts(value),
    "list or text": lambda kind, value: isinstance(value, str) or _is_list_of_texts(value),
    "texts": lambda kind, value: isinstance(value, str | Mapping) or _is_list_of_texts(value),
    "table or nothing": lambda kind, value: not value or isinstance(value, Mapping),
    "table or text": lambda kind, value: isinstance(value, Mapping | str | list),
    "number or nothing": lambda kind, value: not value or isinstance(value, int | float),
    "whole number": lambda kind, value: isinstance(value, int),
    "not empty": lambda kind, value: bool(value),
    "no JSON value": lambda kind, value: False,
}


def choice(*names: str, optional: bool = False, auto: bool = True) -> Kind:
    """One of a few names."""
    return Kind(name="choice", choices=names, optional=optional, auto=auto)


ANY = Kind(name="any")
INT, SIZE, POSITIVE = Kind(name="int"), Kind(name="int", low=0), Kind(name="int", above=0)
FRACTION = Kind(name="float", low=0, high=1)
BOOL, BOOL_OR_NULL = Kind(name="bool"), Kind(name="bool", optional=True)
TEXT, TEXT_OR_NULL = Kind(name="text"), Kind(name="text", optional=True)
TABLE, TABLE_OR_NULL = Kind(name="table"), Kind(name="table", optional=True)
LIST, LIST_OR_NULL = Kind(name="list"), Kind(name="list", optional=True)
TEXTS = Kind(name="list or text")
NOTHING = Kind(name="no JSON value")
# Sections that DeepSpeed opens as they are: neither null nor "auto" will do.
SECTION = Kind(name="table", auto=False)
SECTION_OR_NULL = Kind(name="table", auto=False, optional=True)
# Batch sizes: numbers, which are compared and divided as they are.
BATCH_SIZE = Kind(name="float", above=0, auto=False, lax=False, optional=True, finite=True)
