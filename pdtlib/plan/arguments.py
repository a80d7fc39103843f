"""How a function refuses an argument: the field, the value, what is wrong, what would do."""

from __future__ import annotations


class BadArgument(ValueError):
    """A refused argument.

    >>> str(BadArgument("stages", 3, "dualpipe pairs the stages", (2, 4)))
    'stages=3: dualpipe pairs the stages; valid: 2, 4'
    """

    def __init__(self, field: str, value: object, message: str = "", valid: tuple[object, ...] = ()) -> None:
        self.field, self.value, self.valid = field, value, valid
        self.message = message or "not a valid value"
        text = f"{field}={value!r}" + (f": {message}" if message else "")
        super().__init__(f"{text}; valid: {', '.join(map(str, valid))}" if valid else text)


def at_least(field: str, value: float, least: float) -> None:
    """Refuse a value below ``least``."""
    if not value >= least:
        raise BadArgument(field, value, valid=(f"{least} or more",))
