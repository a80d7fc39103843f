"""What a reader can change in an explorer.

A control's state is a short text, its *key*: it stands in the page's address, in the build-time table and in
the form. ``parse`` turns a key (or a value) into the value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

MULTIPLES = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


class ControlError(ValueError):
    """A control's value is not valid; ``field`` is the control's name."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, kw_only=True)
class Control:
    """What all controls share.

    ``when`` names another control and the keys of it for which this one is shown. ``job_field`` is the dotted
    field of the job that this control sets: a problem found in the job is then reported beside the control.
    """

    name: str
    label: str
    default: Any
    group: str = ""
    help: str = ""
    when: tuple[str, tuple[str, ...]] | None = None
    job_field: str = ""

    def applies(self, state: Mapping[str, str]) -> bool:
        """Whether the control is shown in a state (keys by control name)."""
        return self.when is None or state[self.when[0]] in self.when[1]

    def key(self, value: Any) -> str:
        """The text that stands for a value."""
        return str(value)

    def parse(self, given: Any) -> Any:
        """The value meant by a key or a value; raises ControlError with the valid values."""
        raise NotImplementedError

    def moves(self) -> tuple[str, ...]:
        """The keys that one move of this control can reach."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Choice(Control):
    """One of a few values, each with the text that the reader sees."""

    options: tuple[tuple[Any, str], ...]

    def parse(self, given: Any) -> Any:
        for value, _ in self.options:
            if given == value or str(given) == self.key(value):
                return value
        valid = ", ".join(self.moves())
        raise ControlError(self.name, f"{self.label}: {given} is not one of {valid}")

    def moves(self) -> tuple[str, ...]:
        return tuple(self.key(value) for value, _ in self.options)

    def text(self, key: str) -> str:
        """What the reader sees for a key."""
        return next(text for value, text in self.options if self.key(value) == key)


@dataclass(frozen=True, kw_only=True)
class Slider(Choice):
    """A choice on a scale: its options are ordered and need not be evenly spaced."""


@dataclass(frozen=True, kw_only=True)
class Player(Slider):
    """A slider through the steps of a process, with buttons for one step and for play."""


def scale(values: tuple[Any, ...] | range, text: Callable[[Any], str] = str) -> tuple[tuple[Any, str], ...]:
    """Options of a slider from its values and a function that words them."""
    return tuple((value, text(value)) for value in values)


@dataclass(frozen=True, kw_only=True)
class Toggle(Control):
    """On or off."""

    default: bool = False

    def key(self, value: Any) -> str:
        return "on" if value in (True, "on") else "off"

    def parse(self, given: Any) -> bool:
        if given in (True, "on"):
            return True
        if given in (False, "off"):
            return False
        raise ControlError(self.name, f"{self.label}: {given} is not one of on, off")

    def moves(self) -> tuple[str, ...]:
        return ("off", "on")


@dataclass(frozen=True, kw_only=True)
class Number(Control):
    """A number that the reader types: digits, an exponent, or K, M, B, T for thousand to trillion."""

    minimum: float
    maximum: float
    integer: bool = True
    unit: str = ""
    suggestions: tuple[str, ...] = field(default=())

    def key(self, value: Any) -> str:
        if isinstance(value, str):
            return value.strip()
        return f"{value:g}" if not isinstance(value, int) else str(value)

    def parse(self, given: Any) -> int | float:
        text = str(given).strip().replace(",", "").replace("_", "").replace(" ", "")
        factor = MULTIPLES.get(text[-1:].upper(), 1)
        try:
            number = float(text[:-1] if factor != 1 else text) * factor
        except ValueError:
            raise ControlError(self.name, f"{self.label}: {given!r} is not a number") from None
        limits = f"{self.label}: {given} must lie between {_plain(self.minimum)} and {_plain(self.maximum)}"
        if not math.isfinite(number) or not self.minimum <= number <= self.maximum:
            raise ControlError(self.name, limits)
        if not self.integer:
            return number
        if number != round(number):
            raise ControlError(self.name, f"{self.label}: {given} must be a whole number")
        return int(number)

    def moves(self) -> tuple[str, ...]:
        return self.suggestions


@dataclass(frozen=True, kw_only=True)
class Text(Control):
    """A line that the reader types; ``check`` raises ValueError, with what is right, if it can't be read."""

    default: str = ""
    check: Callable[[str], Any]
    suggestions: tuple[str, ...]
    longest: int = 200

    def key(self, value: Any) -> str:
        return str(value).strip()

    def parse(self, given: Any) -> str:
        text = self.key(given)
        if len(text) > self.longest:
            raise ControlError(self.name, f"{self.label}: at most {self.longest} characters")
        try:
            self.check(text)
        except ValueError as error:
            raise ControlError(self.name, f"{self.label}: {error}") from None
        return text

    def moves(self) -> tuple[str, ...]:
        return (self.default, *self.suggestions)


def _plain(number: float) -> str:
    return f"{number:,.0f}" if number == int(number) and abs(number) < 1e15 else f"{number:g}"
