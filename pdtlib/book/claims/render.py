"""Claims as HTML: one folding entry each, open where the article needs a correction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pdtlib.book.claims import judged
from pdtlib.book.claims.judge import ASSUMPTION, EXACT, IMPRECISE, VERDICTS, WRONG, Claim
from pdtlib.book.tables import escape

MARKS = {EXACT: "✓", ASSUMPTION: "◐", IMPRECISE: "≈", WRONG: "✗"}

STYLE = """<style>
.pdt-claims details { border: 1px solid var(--pst-color-border, #c9c9c9); border-radius: .35rem;
  margin: .5rem 0; padding: .45rem .8rem; }
.pdt-claims summary { cursor: pointer; }
.pdt-claims details > p, .pdt-claims ul { margin: .5rem 0 0; }
.pdt-claims ul { padding-left: 1.2rem; }
.pdt-claims .pdt-sources { font-size: .85em; color: var(--pst-color-text-muted, #55595f); }
.pdt-verdict { display: inline-block; border: 1px solid currentColor; border-radius: 1rem; padding: 0 .55rem;
  margin-right: .35rem; font-size: .85em; font-weight: 600; white-space: nowrap; }
</style>"""


@dataclass(frozen=True)
class ClaimList:
    """Claims for display: HTML on a page, one line each as text."""

    claims: Sequence[Claim]

    def _repr_html_(self) -> str:
        entries = [(claim, *judged(claim)) for claim in self.claims]
        counts = Counter(result for _, result, _ in entries)
        listed = ", ".join(f"{counts[name]} {name}" for name in VERDICTS if counts[name])
        body = "".join(entry(claim, opened=_corrects(claim)) for claim in self.claims)
        return f'{STYLE}<div class="pdt-claims"><p>{len(entries)} claims: {listed}.</p>{body}</div>'

    def __repr__(self) -> str:
        return "\n".join(f"{claim.id}: {judged(claim)[0]}" for claim in self.claims)


def _corrects(claim: Claim) -> bool:
    return judged(claim)[0] in (IMPRECISE, WRONG)


def entry(claim: Claim, *, opened: bool, more: str = "") -> str:
    """A claim as a folding entry; ``more`` is HTML that stands at its end."""
    result, finding = judged(claim)
    readings = "".join(
        f"<li>{escape(reading.text)}: {'holds' if reading.holds else 'does not hold'}"
        f"{'' if reading.usual else ' (not how practice reads it)'}</li>"
        for reading in finding.readings
    )
    how = "Computed" if finding.readings else "Judged by hand"
    sources = "; ".join(escape(source) for source in claim.sources)
    return (
        f'<details{" open" if opened else ""} id="claim-{escape(claim.id)}"><summary>'
        f'<span class="pdt-verdict">{MARKS[result]} {result}</span> '
        f"<strong>{escape(claim.id)}</strong> {escape(claim.says)}</summary>"
        f"<p>{escape(finding.reason)}</p>"
        + (f"<ul>{readings}</ul>" if readings else "")
        + f'<p class="pdt-sources">{how}.{" Sources: " + sources + "." if sources else ""}</p>'
        + f"{more}</details>"
    )
