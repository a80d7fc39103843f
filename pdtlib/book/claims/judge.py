"""From a claim to its verdict: the readings that a claim can have, and which of them it survives.

A sentence such as "Adam's state takes 560 GB" is true or false only once you say how it is to be read: with
or without a master copy, per GPU or in all. Each claim lists its readings. A reading is *usual* when practice
reads the sentence so (or when the text itself has said so). Whether it holds is computed where it can be. The
verdict follows from that alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

VERDICTS = ("exact", "right under an assumption", "imprecise", "wrong")
EXACT, ASSUMPTION, IMPRECISE, WRONG = VERDICTS


@dataclass(frozen=True)
class Reading:
    """One way to read a claim, and whether the claim holds when it is read so."""

    text: str
    holds: bool
    usual: bool = True


@dataclass(frozen=True)
class Finding:
    """What examining a claim gave. Without readings the verdict is a judgement, and the page says so."""

    reason: str
    readings: Sequence[Reading] = field(default_factory=tuple)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of the article in our words. ``registered`` is the verdict that a reviewer gave it by hand."""

    id: str
    section: str
    says: str
    registered: str
    sources: tuple[str, ...]
    examine: Callable[[], Finding]


def verdict(readings: Sequence[Reading]) -> str:
    """The verdict that the readings amount to.

    *Exact*: holds under every reading. *Right under an assumption*: under some usual ones. *Imprecise*: under
    none of those, but under one that practice does not use. *Wrong*: under none at all. Raises ``ValueError``
    without a usual reading.

    >>> verdict([Reading("16-bit gradients", True), Reading("fp32 gradients", False)])
    'right under an assumption'
    """
    usual = [reading.holds for reading in readings if reading.usual]
    if not usual:
        raise ValueError("readings: none is usual; valid: at least one usual reading")
    if all(reading.holds for reading in readings):
        return EXACT
    if any(usual):
        return ASSUMPTION
    return IMPRECISE if any(reading.holds for reading in readings) else WRONG


def prints_as(value: float, printed: float) -> bool:
    """Whether ``value`` rounds to the number as it was printed, to the printed number's last digit.

    >>> prints_as(69.97, 70), prints_as(87.5, 87.5), prints_as(87.6, 87.5)
    (True, True, False)
    """
    text = f"{printed:.12g}"
    decimals = len(text.partition(".")[2]) if "e" not in text else 0
    return round(value, decimals) == printed


def near(value: float, printed: float, *, within: float = 0.05) -> bool:
    """Whether ``value`` is what a printed "about ..." can mean: within 5 %."""
    return abs(value / printed - 1) <= within


class Register:
    """Claims in the order in which the text makes them."""

    def __init__(self) -> None:
        self.claims: list[Claim] = []

    def claim(
        self, id: str, *, says: str, registered: str, sources: tuple[str, ...] = ()
    ) -> Callable[[Callable[[], Finding]], Callable[[], Finding]]:
        """Decorator: enter the function that examines a claim. Its section is the id up to the dash."""
        if registered not in VERDICTS:
            raise ValueError(f"claim {id}: registered={registered!r}; valid: {', '.join(VERDICTS)}")

        def enter(examine: Callable[[], Finding]) -> Callable[[], Finding]:
            section = id.removeprefix("C").rpartition("-")[0]
            self.claims.append(
                Claim(
                    id=id, section=section, says=says, registered=registered, sources=sources, examine=examine
                )
            )
            return examine

        return enter
