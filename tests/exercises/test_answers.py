"""Every solution passes its grader; every typical wrong answer fails with the message that teaches."""

from importlib import import_module

import pytest
from wrong_answers import Wrong, wrong_answers

from pdtlib import exercises

SEEDS = (1, 2, 3)
WRONG = wrong_answers()
BROWSER = [wrong for wrong in WRONG if exercises.get(wrong.id).runs_in == "browser"]
RANKS = [wrong for wrong in WRONG if exercises.get(wrong.id).runs_in == "ranks"]


def _browser_ids() -> list[str]:
    return [id for id in exercises.ids() if exercises.get(id).runs_in == "browser"]


def _ranks_ids() -> list[str]:
    return [id for id in exercises.ids() if exercises.get(id).runs_in == "ranks"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("id", _browser_ids())
def test_solution_passes_in_the_browser(id: str, seed: int) -> None:
    report = exercises.get(id).grade(exercises.get(id).solution, seed=seed)
    assert report.passed, report.text()
    assert report.score == 1.0


@pytest.mark.parametrize("id", _ranks_ids())
def test_solution_passes_on_ranks(id: str) -> None:
    report = exercises.get(id).grade(exercises.get(id).solution, seed=5)
    assert report.passed, report.text()


@pytest.mark.parametrize("id", exercises.ids())
def test_starter_does_not_pass(id: str) -> None:
    assert not exercises.get(id).grade(exercises.get(id).starter, seed=5).passed


def _fails_as_expected(wrong: Wrong, seed: int) -> None:
    report = exercises.get(wrong.id).grade(wrong.source, seed=seed)
    assert not report.passed, report.text()
    messages = "\n".join(check.message for check in report.checks if not check.passed)
    assert wrong.says in messages, report.text()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("wrong", BROWSER, ids=str)
def test_wrong_answer_is_told_why(wrong: Wrong, seed: int) -> None:
    _fails_as_expected(wrong, seed)


@pytest.mark.parametrize("wrong", RANKS, ids=str)
def test_wrong_answer_on_ranks_is_told_why(wrong: Wrong, monkeypatch: pytest.MonkeyPatch) -> None:
    """On 3 ranks alone, to save time: 2 hides the difference between some costs."""
    grader = import_module(f"{exercises.get(wrong.id).package}.grader")
    monkeypatch.setattr(grader, "WORLD_SIZES", (3,))
    _fails_as_expected(wrong, 5)


@pytest.mark.parametrize("id", exercises.ids())
def test_at_least_three_wrong_answers(id: str) -> None:
    assert sum(wrong.id == id for wrong in WRONG) >= 3
