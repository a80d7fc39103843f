"""The claim register: what the article says, in our words, each with a verdict and why.

``show("2.1", "2.2")`` puts the claims of those sections into a chapter. Verdicts are derived by
:func:`pdtlib.book.claims.judge.verdict` from readings that are computed when the page is built; a claim
without readings is a judgement and says so.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from importlib import import_module

from pdtlib.book.claims.judge import VERDICTS, Claim, Finding, verdict

MODULES = (
    "section1",
    "section2",
    "section2_code",
    "section3_code",
    "section3",
    "section4",
    "section4_schedules",
    "section5",
    "section6",
    "section7",
    "section7_config",
    "section7_overlap",
    "section8",
    "section9",
    "section10",
)
"""Where the claims stand, in the article's order."""


def register() -> tuple[Claim, ...]:
    """Every claim that has been examined, in the article's order."""
    modules = [import_module(f"{__name__}.{name}") for name in MODULES]
    return tuple(claim for module in modules for claim in module.REGISTER.claims)


def of_sections(*sections: str) -> tuple[Claim, ...]:
    """The claims of these sections; ``ValueError`` for one that the register has not got."""
    claims = register()
    known = sorted({claim.section for claim in claims})
    for section in sections:
        if section not in known:
            raise ValueError(f"section={section!r}; valid: {', '.join(known)}")
    return tuple(claim for claim in claims if claim.section in sections)


@cache
def judged(claim: Claim) -> tuple[str, Finding]:
    """Examine a claim: its verdict, and what the examination found."""
    finding = claim.examine()
    return (verdict(finding.readings) if finding.readings else claim.registered), finding


def counted(*sections: str) -> Counter[str]:
    """How many claims of these sections got each verdict."""
    return Counter(judged(claim)[0] for claim in of_sections(*sections))


def show(*sections: str) -> None:
    """Show the claims of these sections in a notebook."""
    from IPython.display import display

    from pdtlib.book.claims.render import ClaimList

    display(ClaimList(of_sections(*sections)))


__all__ = ["VERDICTS", "Claim", "counted", "judged", "of_sections", "register", "show"]


def show_register() -> None:
    """Show every claim in a notebook, with a filter by section and verdict."""
    from IPython.display import display

    from pdtlib.book.claims.page import RegisterPage

    display(RegisterPage())
