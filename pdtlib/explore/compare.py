"""What changed between two views, number by number."""

from __future__ import annotations

from pdtlib.explore.view import Readout, Swatch, Table, View
from pdtlib.explore.wording import amount
from pdtlib.figures.words import say


def differences(now: View, pinned: View) -> Table:
    """One row for each number of either view: pinned, now, and the change."""
    before, after = _numbers(pinned), _numbers(now)
    names = [*after, *(name for name in before if name not in after)]
    rows = tuple(_row(before.get(name), after.get(name)) for name in names)
    return Table(
        caption=say("compare.caption"),
        columns=(say("compare.quantity"), say("compare.pinned"), say("compare.now"), say("compare.change")),
        rows=rows,
    )


def _numbers(view: View) -> dict[str, Readout | Swatch]:
    entries: tuple[Readout | Swatch, ...] = (*view.legend, *view.readouts)
    return {f"{type(entry).__name__}.{entry.name}": entry for entry in entries if entry.text}


def _row(before: Readout | Swatch | None, after: Readout | Swatch | None) -> tuple[str, ...]:
    shown = after or before
    assert shown is not None
    absent = say("compare.absent")
    pinned, now = (entry.text if entry else absent for entry in (before, after))
    return (shown.label, pinned, now, _change(before, after))


def _change(before: Readout | Swatch | None, after: Readout | Swatch | None) -> str:
    if before is None or after is None or before.value is None or after.value is None:
        return (
            say("compare.same") if before and after and before.text == after.text else say("compare.differs")
        )
    difference = after.value - before.value
    if difference == 0:
        return say("compare.same")
    sign = "+" if difference > 0 else "−"
    text = f"{sign}{amount(abs(difference), after.unit)}"
    if before.value:
        text += f" ({sign}{abs(difference) / abs(before.value) * 100:.3g} %)"
    return text
