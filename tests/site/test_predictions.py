"""Predictions on the built pages: typed numbers are compared with the value that the build computed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pdtlib.explore.prediction import readable

PAGES = {
    "chapters/01_one_gpu.html": 2,
    "chapters/02_data_parallel.html": 2,
    "chapters/04_pipeline_parallel.html": 2,
    "chapters/05_3d_parallel.html": 2,
    "chapters/08_efficiency.html": 2,
    "chapters/10_conclusion.html": 3,
}


def answers(page: Any) -> list[dict[str, Any]]:
    """The payload of every prediction on the page."""
    return [
        json.loads(element.get_attribute("data-prediction"))
        for element in page.query_selector_all("pdt-prediction")
    ]


def say(page: Any, id: str, text: str) -> tuple[str, str]:
    """Type a guess and press Enter; the verdict and the sentence shown."""
    root = page.locator(f"#prediction-{id}")
    root.locator("input").fill(text)
    root.locator("input").press("Enter")
    return root.get_attribute("data-verdict"), root.locator("[role=status]").inner_text()


@pytest.mark.parametrize("path", PAGES)
def test_every_prediction_answers(visit: Any, path: str) -> None:
    page = visit.open(path)
    found = answers(page)
    assert len(found) == PAGES[path]
    for asked in found:
        verdict, sentence = say(page, asked["id"], readable(asked["value"]))
        assert verdict == "right"
        assert readable(asked["value"]) in sentence
        assert asked["explanation"] in sentence
        for slip in asked["slips"]:
            verdict, sentence = say(page, asked["id"], f"{slip['value']:.6g}")
            assert (verdict, slip["text"] in sentence) == ("slip", True)
        assert say(page, asked["id"], f"{asked['value'] * 30:.6g}") == (
            "off",
            f"You are 30 times too high. The library computes {readable(asked['value'])} {asked['unit']}. "
            f"{asked['explanation']}",
        )
    assert not visit.errors


@pytest.mark.parametrize("text", ["", "many", "1 to 2", "12 GB", "--3"])
def test_what_is_no_number_is_asked_for_again(visit: Any, text: str) -> None:
    page = visit.open("chapters/01_one_gpu.html")
    verdict, sentence = say(page, "ch01-states", text)
    assert verdict == "invalid"
    assert "Type one number" in sentence
    assert page.locator("#prediction-ch01-states input").get_attribute("aria-invalid") == "true"


@pytest.mark.parametrize("text", ["1120", "1,120", " 1 120 ", "1.12e3", "1.12 × 10^3", "1.12x10³", "+1120.0"])
def test_a_number_can_be_written_in_many_ways(visit: Any, text: str) -> None:
    page = visit.open("chapters/01_one_gpu.html")
    assert say(page, "ch01-states", text)[0] == "right"


@pytest.mark.parametrize("visit", [{"javascript": False}], indirect=True)
def test_without_script_the_answer_folds_open(visit: Any) -> None:
    page = visit.open("chapters/01_one_gpu.html")
    answer = page.locator("#prediction-ch01-states details")
    assert not answer.locator("p").is_visible()
    answer.locator("summary").click()
    assert "1,120 GB" in answer.locator("p").inner_text()
