"""The whole register on one page: every claim, to be filtered by section and verdict."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from pdtlib.book.claims import judged, register
from pdtlib.book.claims.judge import VERDICTS, Claim
from pdtlib.book.claims.render import STYLE, entry
from pdtlib.book.tables import escape

CHAPTERS = Path(__file__).parents[3] / "chapters"

SCRIPT = """<script>
(() => {
  const root = document.currentScript.previousElementSibling;
  const [section, verdict] = root.querySelectorAll("select");
  const claims = [...root.querySelectorAll("details")];
  const shown = root.querySelector("output");
  const choose = () => {
    let count = 0;
    for (const claim of claims) {
      const fits = (!section.value || claim.parentElement.dataset.section === section.value) &&
        (!verdict.value || claim.parentElement.dataset.verdict === verdict.value);
      claim.parentElement.hidden = !fits;
      count += fits;
    }
    shown.value = `${count} of ${claims.length} claims`;
    const state = new URLSearchParams();
    if (section.value) state.set("section", section.value);
    if (verdict.value) state.set("verdict", verdict.value);
    history.replaceState(null, "", state.size ? `?${state}` : location.pathname);
  };
  const asked = new URLSearchParams(location.search);
  section.value = asked.get("section") ?? "";
  verdict.value = asked.get("verdict") ?? "";
  for (const select of [section, verdict]) {
    if (select.selectedIndex < 0) select.value = "";
    select.addEventListener("change", choose);
  }
  choose();
})();
</script>"""


class RegisterPage:
    """All claims for display: HTML with a filter on a page, a line for each section as text."""

    def _repr_html_(self) -> str:
        claims = register()
        sections = list(dict.fromkeys(claim.section for claim in claims))
        entries = "".join(_entry(claim) for claim in claims)
        by_section = _select("Section", "every section", sections)
        by_verdict = _select("Verdict", "every verdict", VERDICTS)
        return (
            f'{STYLE}<div class="pdt-claims"><p>{by_section} {by_verdict} '
            f'<output aria-live="polite">{len(claims)} of {len(claims)} claims</output></p>'
            f"{entries}</div>{SCRIPT}"
        )

    def __repr__(self) -> str:
        counts: dict[str, Counter[str]] = {}
        for claim in register():
            counts.setdefault(claim.section, Counter())[judged(claim)[0]] += 1
        return "\n".join(
            f"{section:<14} " + ", ".join(f"{count[verdict]} {verdict}" for verdict in VERDICTS)
            for section, count in counts.items()
        )


def _select(label: str, everything: str, values: tuple[str, ...] | list[str]) -> str:
    options = "".join(f'<option value="{escape(value)}">{escape(value)}</option>' for value in values)
    return f'<label>{label} <select><option value="">{everything}</option>{options}</select></label>'


def _entry(claim: Claim) -> str:
    """One claim, with the way to the chapter that shows its evidence."""
    page = chapter_of(claim.section)
    link = f'<p class="pdt-sources"><a href="{page}.html#claim-{escape(claim.id)}">In its chapter</a></p>'
    return (
        f'<div data-section="{escape(claim.section)}" data-verdict="{escape(judged(claim)[0])}">'
        f"{entry(claim, opened=False, more=link)}</div>"
    )


def chapter_of(section: str) -> str:
    """The page on which a section's claims stand; chapter 1 has those of the introduction, section 0."""
    number = max(1, int(section.partition(".")[0]))
    return next(CHAPTERS.glob(f"{number:02d}_*.ipynb")).stem
