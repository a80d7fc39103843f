"""A question that the reader answers with a number before reading on.

The answer that the page compares with is the value computed when the page was built, never a
literal typed by an author. Slips that many readers make are computed too, so the page can say
which one a number looks like.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MIME = "application/vnd.pdtlib.prediction+json"
FRONT = Path(__file__).parent / "front"


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One question and its computed answer.

    ``value`` is in ``unit``; ``tolerance`` is relative (0.02 accepts 2 % either way). ``slips`` maps
    a sentence such as "you left out the master copy" to the value that this slip gives.
    """

    id: str
    question: str
    value: float
    unit: str
    tolerance: float
    explanation: str
    slips: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not math.isfinite(self.value) or self.value == 0:
            raise ValueError(
                f"prediction {self.id!r}: value={self.value!r}; valid: a finite number other than 0"
            )
        if not 0 < self.tolerance < 0.5:
            raise ValueError(
                f"prediction {self.id!r}: tolerance={self.tolerance!r}; valid: above 0, below 0.5"
            )
        for sentence, slip in self.slips.items():
            if abs(slip / self.value - 1) <= self.tolerance:
                raise ValueError(f"prediction {self.id!r}: the slip {sentence!r} would count as right")

    @property
    def payload(self) -> dict[str, Any]:
        """What the page needs, as plain JSON."""
        return {
            "id": self.id,
            "question": self.question,
            "value": self.value,
            "unit": self.unit,
            "tolerance": self.tolerance,
            "explanation": self.explanation,
            "slips": [{"text": text, "value": value} for text, value in self.slips.items()],
        }

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return {
            MIME: self.payload,
            "text/html": standalone_html(self.payload),
            "text/plain": f"{self.question} (answer in {self.unit})",
        }


def prediction(
    id: str,
    question: str,
    *,
    value: float,
    unit: str,
    explanation: str,
    tolerance: float = 0.02,
    slips: Mapping[str, float] | None = None,
) -> Prediction:
    """The prediction to leave as the last expression of a notebook cell."""
    return Prediction(
        id=id,
        question=question,
        value=float(value),
        unit=unit,
        tolerance=tolerance,
        explanation=explanation,
        slips={text: float(slip) for text, slip in (slips or {}).items()},
    )


def readable(value: float) -> str:
    """Four significant digits, thousands separated; powers of ten beyond a million millions."""
    if abs(value) >= 1e15 or abs(value) < 1e-3:
        mantissa, exponent = f"{value:.3e}".split("e")
        mantissa = mantissa.rstrip("0").rstrip(".")
        return f"{mantissa} × 10^{int(exponent)}"
    decimals = max(0, 3 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def static_html(payload: Mapping[str, Any]) -> str:
    """The element as the page first paints it: works without script (the answer folds open)."""
    key = html.escape(str(payload["id"]), quote=True)
    unit = html.escape(payload["unit"])
    data = html.escape(json.dumps(payload, sort_keys=True), quote=True)
    return (
        f'<pdt-prediction class="pdt-prediction" id="prediction-{key}" data-prediction="{data}">'
        f'<form class="pdt-prediction-form" novalidate>'
        f'<label class="pdt-prediction-question" for="prediction-{key}-input">'
        f'<span class="pdt-prediction-tag">Predict first</span> {html.escape(payload["question"])}</label>'
        f'<span class="pdt-prediction-row">'
        f'<input id="prediction-{key}-input" name="guess" type="text" inputmode="decimal" autocomplete="off" '
        f'size="12" aria-describedby="prediction-{key}-unit">'
        f'<span class="pdt-prediction-unit" id="prediction-{key}-unit">{unit}</span>'
        f'<button type="submit">Compare</button></span></form>'
        f'<p class="pdt-prediction-result" role="status"></p>'
        f'<details class="pdt-prediction-answer"><summary>Show the computed value</summary>'
        f"<p><strong>{html.escape(readable(payload['value']))} {unit}</strong>. "
        f"{html.escape(payload['explanation'])}</p></details>"
        f"</pdt-prediction>"
    )


def standalone_html(payload: Mapping[str, Any]) -> str:
    """The element with its style and script inside, for a live notebook."""
    style = (FRONT / "prediction.css").read_text(encoding="utf-8")
    script = (FRONT / "prediction.js").read_text(encoding="utf-8")
    return f'<style>{style}</style>{static_html(payload)}<script type="module">{script}</script>'
