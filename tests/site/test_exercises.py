"""The exercises on the page: solved wrongly and rightly, in the page's own editor."""

from __future__ import annotations

import pytest
from site_under_test import exercises

from pdtlib.exercises import get

EXERCISES = exercises() or [("the site has no exercise", {"data-exercise": "none"})]


def case_id(case):
    return case[1]["data-exercise"]


def write(page, section, source):
    """Replace what the editor holds by typing over it."""
    section.locator(".cm-content").click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(source)


def grade(page, section):
    """Run the checks and wait for the report's result."""
    section.locator("[data-run]").click()
    page.wait_for_function(
        "(id) => document.querySelector(`[data-exercise='${id}'] [data-report]`).dataset.result",
        arg=section.get_attribute("data-exercise"),
        timeout=150_000,
    )
    return section.locator("[data-report]").get_attribute("data-result")


@pytest.mark.parametrize("case", EXERCISES, ids=case_id)
def test_the_starter_fails_and_the_solution_passes(visit, case):
    """Python comes when the reader enters the editor, not before; the reader's text survives a reload."""
    path, given = case
    exercise = get(given["data-exercise"])
    page = visit.open(path)
    section = page.locator(f'[data-exercise="{exercise.id}"]')
    section.scroll_into_view_if_needed()
    section.locator(".cm-content").wait_for()
    assert visit.python_requests() == []
    assert grade(page, section) == "fail"
    assert section.locator("[data-report]").inner_text().strip()
    assert section.locator("[data-solved]").is_hidden()

    write(page, section, exercise.solution)
    assert grade(page, section) == "pass"
    assert section.locator("[data-solved]").is_visible()
    assert visit.blocked == []
    assert visit.errors == []

    page.reload()
    section.locator(".cm-content").wait_for()
    assert section.locator("[data-solved]").is_visible()
    assert exercise.solution.strip().splitlines()[0] in section.locator(".cm-content").inner_text()


@pytest.mark.parametrize("case", EXERCISES[:1], ids=case_id)
def test_a_loop_that_never_ends_is_stopped_by_the_reader(visit, case):
    path, given = case
    exercise = get(given["data-exercise"])
    page = visit.open(path)
    section = page.locator(f'[data-exercise="{exercise.id}"]')
    section.locator(".cm-content").wait_for()
    write(page, section, "while True:\n    pass\n")
    section.locator("[data-run]").click()
    section.locator("[data-stop]").click()
    page.wait_for_function(
        "(id) => document.querySelector(`[data-exercise='${id}']`).getAttribute('aria-busy') === 'false'",
        arg=exercise.id,
    )
    write(page, section, exercise.solution)
    assert grade(page, section) == "pass"


@pytest.mark.parametrize("case", EXERCISES[:1], ids=case_id)
def test_an_exercise_is_solved_by_keyboard_alone(visit, case):
    """Tab leads from the title to the editor and on to the button: no trap, no mouse."""
    path, given = case
    exercise = get(given["data-exercise"])
    page = visit.open(path)
    section = page.locator(f'[data-exercise="{exercise.id}"]')
    section.locator(".cm-content").wait_for()
    section.locator(".cm-content").focus()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(exercise.solution)
    page.keyboard.press("Escape")
    for _ in range(10):
        page.keyboard.press("Tab")
        if section.locator("[data-run]").evaluate("(button) => button === document.activeElement"):
            break
    page.keyboard.press("Enter")
    page.wait_for_function(
        "(id) => document.querySelector(`[data-exercise='${id}'] [data-report]`).dataset.result === 'pass'",
        arg=exercise.id,
        timeout=150_000,
    )
