"""The playground's panels: in the page as written, after moves, for a refused job; texts can be copied."""

from __future__ import annotations

import pytest
from site_under_test import explorers

from pdtlib.explore import catalog
from pdtlib.figures.words import say

PLAYGROUND = catalog.get("playground")
FOUND = [path for path, given in explorers() if given["data-explorer"] == "playground"]
PATH = FOUND[0] if FOUND else "the site has no playground"
NO_PYTHON = {"refused": ["/vendor/pyodide/", "/vendor/pdt/pdtlib.zip"]}
PANELS = """(root) => [...root.querySelectorAll("[data-panel]")].map((panel) => ({
    name: panel.dataset.panel,
    summary: panel.querySelector("[data-panel-summary]").textContent,
    figure: !panel.querySelector("[data-panel-figure]").hidden,
    table: [...panel.querySelectorAll("[data-panel-table] tbody tr")].map(
        (row) => [...row.children].map((cell) => cell.textContent)),
    legend: [...panel.querySelectorAll("[data-swatch]")].map((item) => item.dataset.swatch),
    files: [...panel.querySelectorAll("[data-panel-files] pre")].map((text) => text.textContent),
}))"""


def expected(state):
    """What :data:`PANELS` gives for a state."""
    return [
        {
            "name": panel.name,
            "summary": panel.summary,
            "figure": panel.figure is not None,
            "table": [list(row) for row in panel.table.rows] if panel.table else [],
            "legend": [swatch.name for swatch in panel.legend],
            "files": [file.text for file in panel.files],
        }
        for panel in PLAYGROUND.view_of(state).panels
    ]


@pytest.fixture
def opened(visit):
    page = visit.open(PATH)
    page.wait_for_selector('[data-explorer="playground"][data-alive]')
    page.wait_for_load_state("networkidle")
    return page.locator('[data-explorer="playground"]')


def choose(root, name, key):
    root.locator(f'[data-for="{name}"] select').select_option(key)
    root.page.wait_for_function(
        "(wanted) => document.querySelector('[data-summary]').textContent === wanted",
        arg=PLAYGROUND.view_of({name: key}).summary,
    )


@pytest.mark.parametrize("visit", [{"javascript": False}], indirect=True, ids=["without-scripts"])
def test_the_page_as_written_has_every_panel(visit):
    """Without scripts Playwright cannot ask the page, so its elements are counted."""
    visit.open(PATH)
    panels = visit.page.locator("[data-panel]")
    wanted = expected({})
    assert panels.count() == len(wanted)
    for index, panel in enumerate(wanted):
        box = panels.nth(index)
        assert box.locator("[data-panel-summary]").text_content() == panel["summary"]
        assert box.locator("[data-panel-table] tbody tr").count() == len(panel["table"])
        assert box.locator("pre").all_text_contents() == panel["files"]


@pytest.mark.parametrize("visit", [NO_PYTHON], indirect=True, ids=["without-python"])
def test_a_move_changes_every_panel_and_draws_its_figures(visit, opened):
    assert opened.evaluate(PANELS) == expected({})
    for name, key in (("cluster", "dgx-a100"), ("model", "gpt2")):
        choose(opened, name, key)
        assert opened.evaluate(PANELS) == expected({name: key})
        opened.locator('[data-action="reset"]').click()
    choose(opened, "schedule", "zb-h1")
    for panel in ("time", "schedule"):
        figure = opened.locator(f'[data-panel="{panel}"] [data-panel-figure]')
        figure.scroll_into_view_if_needed()
        figure.locator(".main-svg").first.wait_for()
    assert visit.errors == []


@pytest.mark.parametrize("visit", [NO_PYTHON], indirect=True, ids=["without-python"])
def test_a_refused_job_shows_its_reasons_in_place_of_pictures(opened):
    slider = opened.locator('[data-for="ep"] input')
    slider.focus()
    opened.page.keyboard.press("ArrowRight")
    checks = opened.locator('[data-panel="checks"]')
    checks.locator("tbody th").first.wait_for()
    assert opened.evaluate(PANELS) == expected({"ep": "2"})
    assert checks.locator("tbody tr").first.is_visible()
    assert opened.locator("[data-panel-figure]:visible").count() == 0


@pytest.mark.parametrize("visit", [NO_PYTHON], indirect=True, ids=["without-python"])
def test_the_jobs_file_can_be_copied(opened):
    page = opened.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    button = opened.locator('[data-panel="run"] [data-copy]').first
    button.click()
    button.get_by_text(say("page.copied")).wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == PLAYGROUND.view_of({}).job
