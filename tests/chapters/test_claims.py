"""The claim register: complete, and every verdict that is computed is the one a reviewer gave by hand."""

import re
from collections import Counter
from pathlib import Path

import pytest

from pdtlib.book import claims
from pdtlib.book.claims.judge import (
    ASSUMPTION,
    EXACT,
    IMPRECISE,
    WRONG,
    Reading,
    Register,
    near,
    prints_as,
    verdict,
)
from pdtlib.book.claims.page import RegisterPage, chapter_of
from pdtlib.book.claims.render import ClaimList

ROOT = Path(__file__).parents[2]
PER_SECTION = {
    "0": 2,
    "1.1": 6,
    "1.2": 5,
    "2.1": 5,
    "2.2": 2,
    "2.3": 17,
    "3.1": 12,
    "3.2": 4,
    "3.3": 5,
    "4.1": 3,
    "4.2": 6,
    "4.3": 7,
    "4.4": 6,
    "5.1": 7,
    "5.2": 4,
    "6.1": 6,
    "6.2": 3,
    "7.1": 8,
    "7.2": 19,
    "7.3": 5,
    "8": 9,
    "9.1": 6,
    "9.2": 4,
    "10": 2,
}
VERDICTS = {  # of each chapter: exact, under an assumption, imprecise, wrong
    "0 1": (2, 6, 2, 3),
    "2": (10, 5, 3, 6),
    "3": (7, 6, 4, 4),
    "4": (11, 4, 2, 5),
    "5": (5, 3, 2, 1),
    "6": (3, 2, 2, 2),
    "7": (8, 6, 7, 11),
    "8": (1, 3, 4, 1),
    "9": (6, 2, 2, 0),
    "10": (1, 1, 0, 0),
}
JUDGED_BY_HAND = {"C0-b", "C2.3-a", "C5.1-a"}
"""Judgements, and a name with its inventor: nothing to compute."""


def test_every_claim_of_the_sections_is_there() -> None:
    register = claims.register()
    assert Counter(claim.section for claim in register) == PER_SECTION
    for section, many in PER_SECTION.items():
        letters = [claim.id.rpartition("-")[2] for claim in register if claim.section == section]
        assert letters == [chr(ord("a") + i) for i in range(many)]


def test_the_introduction_counts_the_claims() -> None:
    said = re.findall(r"makes (\d+) claims", (ROOT / "intro.md").read_text(encoding="utf-8"))
    assert said == [str(len(claims.register()))]


@pytest.mark.parametrize("claim", claims.register(), ids=lambda claim: claim.id)
def test_computed_verdicts_agree_with_the_reviewer(claim: claims.Claim) -> None:
    result, finding = claims.judged(claim)
    assert result == claim.registered
    assert bool(finding.readings) == (claim.id not in JUDGED_BY_HAND)
    assert claim.says.strip()
    assert finding.reason.strip()
    assert claim.sources or claim.id == "C0-b"


@pytest.mark.parametrize("chapter", VERDICTS)
def test_verdicts_in_numbers(chapter: str) -> None:
    counted = claims.counted(
        *(section for section in PER_SECTION if section.partition(".")[0] in chapter.split())
    )
    assert tuple(counted[name] for name in (EXACT, ASSUMPTION, IMPRECISE, WRONG)) == VERDICTS[chapter]


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ([(True, True), (True, True)], EXACT),
        ([(True, True), (True, False)], EXACT),
        ([(True, True), (False, True)], ASSUMPTION),
        ([(False, True), (True, False)], IMPRECISE),
        ([(False, True), (False, False)], WRONG),
    ],
)
def test_the_verdict_follows_from_the_readings(readings: list[tuple[bool, bool]], expected: str) -> None:
    assert verdict([Reading("", holds, usual=usual) for holds, usual in readings]) == expected


def test_readings_without_a_usual_one_are_refused() -> None:
    with pytest.raises(ValueError, match="usual"):
        verdict([Reading("odd", True, usual=False)])
    with pytest.raises(ValueError, match="usual"):
        verdict([])


def test_printed_numbers_are_compared_to_their_last_digit() -> None:
    assert prints_as(139.6, 140)
    assert not prints_as(140.6, 140)
    assert prints_as(87.46, 87.5)
    assert not prints_as(87.4, 87.5)
    assert near(15_580, 15_000)
    assert not near(15_580, 22_000)


def test_a_claim_with_an_unknown_verdict_is_refused() -> None:
    with pytest.raises(ValueError, match="mostly"):
        Register().claim("C9-a", says="x", registered="mostly right")


def test_an_unknown_section_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"2\.3"):
        claims.of_sections("7.7")


def test_the_page_shows_every_claim_and_opens_what_needs_correcting() -> None:
    shown = claims.of_sections("2.3")
    markup = ClaimList(shown)._repr_html_()
    for claim in shown:
        assert f'id="claim-{claim.id}"' in markup
        opened = f'<details open id="claim-{claim.id}"' in markup
        assert opened == (claims.judged(claim)[0] in (IMPRECISE, WRONG))
    assert "17 claims: 5 exact, 3 right under an assumption, 3 imprecise, 6 wrong." in markup


def test_the_register_page_holds_every_claim_and_leads_to_its_chapter() -> None:
    markup = RegisterPage()._repr_html_()
    for claim in claims.register():
        assert markup.count(f'id="claim-{claim.id}"') == 1
        page = chapter_of(claim.section)
        assert f'href="{page}.html#claim-{claim.id}"' in markup
    verdicts = re.findall(r'data-verdict="([^"]+)"', markup)
    counted = claims.counted(*{claim.section for claim in claims.register()})
    assert Counter(verdicts) == counted
    assert (chapter_of("0"), chapter_of("2.3")) == ("01_one_gpu", "02_data_parallel")
