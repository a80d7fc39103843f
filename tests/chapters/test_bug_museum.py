"""Every exhibit is found by the equivalence test, and its mended form is not."""

import json
from pathlib import Path

import pytest

from pdtlib.book.museum import EXHIBITS, Exhibit, differences, shown


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda exhibit: exhibit.id)
def test_the_fault_is_found_and_the_mended_form_passes(exhibit: Exhibit) -> None:
    assert differences(exhibit.mended, exhibit.one) == {}
    assert differences(exhibit.faulty, exhibit.one)


def test_there_are_twelve_different_faults() -> None:
    assert len({exhibit.id for exhibit in EXHIBITS}) == len(EXHIBITS) == 12
    assert len({exhibit.faulty for exhibit in EXHIBITS}) == 12


def test_the_values_of_the_reports() -> None:
    """Numbers worked out by hand, so that the programs are not only compared with each other."""
    found = {exhibit.id: exhibit for exhibit in EXHIBITS}
    assert found["token-mean"].one() == 23 / 8
    assert found["token-mean"].faulty(2) == pytest.approx((10 / 5 + 13 / 3) / 2)
    assert found["layers"].faulty(4) == list(range(28))
    assert found["batch"].faulty(4) == 128
    assert found["norm"].one() == pytest.approx(sum(x * x for x in (1, 2, 3, 5, 8, 1, 2, 4, 12)) ** 0.5)
    assert found["bias"].faulty(4) - found["bias"].one() == pytest.approx(30)
    assert found["tied"].one() == [27.5, 27.5]


def test_on_one_rank_nine_of_twelve_are_right() -> None:
    wrong = {exhibit.id for exhibit in EXHIBITS if 1 in differences(exhibit.faulty, exhibit.one)}
    assert wrong == {"batch", "tied", "resume"}


def test_the_table_says_where_the_fault_shows() -> None:
    layers = next(exhibit for exhibit in EXHIBITS if exhibit.id == "layers")
    assert [row[2] for row in shown(layers).rows] == ["equal", "equal", "differs"]
    assert {row[3] for exhibit in EXHIBITS for row in shown(exhibit).rows} == {"equal"}


def test_the_page_has_every_exhibit_in_its_own_words() -> None:
    page = json.loads((Path(__file__).parents[2] / "chapters/bug_museum.ipynb").read_text(encoding="utf-8"))
    text = "\n".join("".join(cell["source"]) for cell in page["cells"])
    for number, exhibit in enumerate(EXHIBITS, start=1):
        assert f"## {number}. {exhibit.title}\n" in text
        for told in (exhibit.symptom, exhibit.fault, exhibit.lesson, f"]({exhibit.chapter})"):
            assert told in text
    assert text.count("## ") == len(EXHIBITS) + 1
