"""Every explorer of the site, moved by mouse and by keyboard, against the same function in Python."""

from __future__ import annotations

import json
from math import prod
from urllib.parse import parse_qsl, urlsplit

import pytest
from site_under_test import explorers, parsed

from pdtlib.explore import catalog
from pdtlib.explore.controls import ControlError, Text
from pdtlib.explore.page import moves
from pdtlib.figures.theme import PICK
from pdtlib.figures.words import say
from pdtlib.plan import job

EXPLORERS = explorers() or [("the site has no explorer", {"data-key": "none", "data-explorer": "none"})]
PICKED = [
    case
    for case in EXPLORERS
    if case[1]["data-explorer"] in catalog.IDS
    and PICK in catalog.get(case[1]["data-explorer"]).view_of().figure["layout"].get("meta", {})
] or EXPLORERS[:1]
PAGES = {path: [case for case in EXPLORERS if case[0] == path] for path, _ in EXPLORERS}
NO_PYTHON = {"refused": ["/vendor/pyodide/", "/vendor/pdt/pdtlib.zip"]}
# When the state attribute was set again after the last input, in milliseconds.
STOPWATCH = """(root) => {
    root.times = [];
    let began = null;
    for (const name of ["input", "change"])
        root.querySelector("form").addEventListener(name, () => { began ??= performance.now(); }, true);
    new MutationObserver(() => {
        if (began === null) return;
        root.times.push(performance.now() - began);
        began = null;
    }).observe(root, { attributes: true, attributeFilter: ["data-state"] });
}"""


def case_id(case):
    return f"{case[0]}-{case[1]['data-key']}"


class OnPage:
    """One explorer on an open page."""

    def __init__(self, visit, case):
        self.visit, (self.path, given) = visit, case
        self.key, self.explorer = given["data-key"], catalog.get(given["data-explorer"])
        self.page = visit.page
        self.root = self.page.locator(f'[data-explorer][data-key="{self.key}"]')

    def open(self):
        self.visit.open(self.path)
        return self.ready()

    def ready(self):
        """Wait for the explorer on a page that is open, and scroll to it."""
        self.page.wait_for_selector(f'[data-key="{self.key}"][data-alive]')
        self.page.wait_for_load_state("networkidle")  # the table has come
        self.root.scroll_into_view_if_needed()
        self.root.evaluate(STOPWATCH)
        return self

    def base(self):
        """The state that the page was written in, by control."""
        return self.root.evaluate(
            """(root) => Object.fromEntries([...root.querySelectorAll("[data-for]")].map(
                (box) => [box.dataset.for, box.querySelector("[data-base]").dataset.base]))"""
        )

    def state(self):
        """The state that the page's address gives."""
        given = dict(parse_qsl(urlsplit(self.page.url).query, keep_blank_values=True))
        prefix = f"{self.key}."
        changed = {n.removeprefix(prefix): v for n, v in given.items() if n.startswith(prefix)}
        return {**self.base(), **changed}

    def prepared(self):
        """The states that the page's table holds."""
        base = self.base()
        return [{**base, **changes} for _, changes in moves(self.explorer, base)]

    def controls(self):
        """The visible controls: (name, kind of input)."""
        return [
            tuple(pair)
            for pair in self.root.evaluate(
                """(root) => [...root.querySelectorAll("[data-for]:not([hidden])")].map((box) => {
                    const input = box.querySelector("[data-control]");
                    return [box.dataset.for, input.tagName === "SELECT" ? "select" : input.type];
                })"""
            )
        ]

    def box(self, name):
        return self.root.locator(f'[data-for="{name}"]')

    def wait_for(self, *states, timeout=150_000):
        wanted = ", ".join(f'[data-key="{self.key}"][data-state="{state}"]' for state in states)
        self.page.wait_for_selector(wanted, timeout=timeout)

    def shown(self):
        """What a reader sees: readouts, summary, table."""
        return self.root.evaluate(
            """(root) => ({
                readouts: [...root.querySelectorAll("[data-readout]")].map((box) => [
                    box.dataset.readout,
                    box.querySelector(".pdt-number").textContent,
                    box.querySelector(".pdt-note")?.textContent ?? "",
                ]),
                summary: root.querySelector("[data-summary]").textContent,
                table: [...root.querySelectorAll("[data-alternative] tbody tr")].map(
                    (row) => [...row.children].map((cell) => cell.textContent)),
            })"""
        )

    def error(self):
        """The message that stands beside a control or above the figure; empty if there is none."""
        return self.root.evaluate(
            """(root) => [...root.querySelectorAll("[data-error-for], [data-problem]")]
                .filter((place) => !place.hidden).map((place) => place.textContent).join("")"""
        )

    def check(self):
        """The page shows what Python computes for the state in the address; returns the page's data-state."""
        self.wait_for("table", "live", "error", timeout=150_000)
        state = self.state()
        refused = ""
        try:
            view = self.explorer.view_of(state)
        except ControlError as problem:
            refused = str(problem)
        assert self.error() == refused, state
        assert (self.root.get_attribute("data-state") == "error") == bool(refused), state
        if not refused:
            expected = {
                "readouts": [[r.name, r.text, r.note] for r in view.readouts],
                "summary": view.summary,
                "table": [list(row) for row in view.table.rows],
            }
            assert self.shown() == expected, state
        return self.root.get_attribute("data-state")

    def reset(self):
        self.root.locator('[data-action="reset"]').click()
        self.page.wait_for_function(
            "(prefix) => ![...new URLSearchParams(location.search).keys()].some((n) => n.startsWith(prefix))",
            arg=f"{self.key}.",
        )
        self.check()

    def suggestion(self, name):
        """A value to type: one that the control itself suggests and does not hold."""
        keys = self.explorer.control(name).moves()
        return next(key for key in keys if key != self.state()[name])


def move_beyond_the_table(on):
    """Move one control after the other until the page must ask Python; False if no move leads there."""
    moved = set()
    while on.state() in on.prepared():
        name, kind = next((one for one in on.controls() if one[0] not in moved), (None, None))
        if name is not None:
            move_by_keyboard(on, name, kind)
            on.check()
            moved.add(name)
            continue
        texts = [name for name, _ in on.controls() if isinstance(on.explorer.control(name), Text)]
        if not texts:
            return False
        line = on.box(texts[0]).locator("input")  # no longer one of the suggestions
        line.fill(", ".join(on.explorer.control(texts[0]).suggestions[-2:]))
        line.press("Enter")
        on.check()
    return True


def move_by_keyboard(on, name, kind):
    box = on.box(name)
    if kind == "range":
        slider = box.locator('input[type="range"]')
        slider.focus()
        at_end = slider.evaluate("(input) => input.value === input.max")
        on.page.keyboard.press("ArrowLeft" if at_end else "ArrowRight")
    elif kind == "radio":
        box.locator("input:checked").focus()
        on.page.keyboard.press("ArrowRight")
    elif kind == "checkbox":
        box.locator("input").focus()
        on.page.keyboard.press("Space")
    elif kind == "select":
        select = box.locator("select")
        select.focus()
        at_end = select.evaluate("(input) => input.selectedIndex === input.options.length - 1")
        on.page.keyboard.press("ArrowUp" if at_end else "ArrowDown")
    else:
        box.locator("input").focus()
        on.page.keyboard.press("Control+A")
        on.page.keyboard.type(on.suggestion(name))
        on.page.keyboard.press("Enter")


def move_by_mouse(on, name, kind):
    box = on.box(name)
    if kind == "range":
        slider = box.locator('input[type="range"]')
        slider.scroll_into_view_if_needed()
        area = slider.bounding_box()
        at = slider.evaluate("(input) => input.value / Math.max(1, input.max)")
        target = 0.05 if at > 0.5 else 0.95
        middle = area["y"] + area["height"] / 2
        on.page.mouse.click(area["x"] + target * area["width"], middle)
    elif kind == "radio":
        box.locator("label:has(input:not(:checked))").first.click()
    elif kind == "checkbox":
        box.locator("label").click()
    elif kind == "select":
        values = box.locator("option").evaluate_all("(options) => options.map((option) => option.value)")
        now = box.locator("select").input_value()
        box.locator("select").select_option(next(value for value in values if value != now))
    else:
        box.locator("input").click(click_count=3)
        on.page.keyboard.type(on.suggestion(name))
        on.page.locator("body").click(position={"x": 2, "y": 2})


MOVES = {"keyboard": move_by_keyboard, "mouse": move_by_mouse}


@pytest.mark.parametrize("visit", [NO_PYTHON], indirect=True, ids=["without-python"])
@pytest.mark.parametrize("case", EXPLORERS, ids=case_id)
@pytest.mark.parametrize("way", sorted(MOVES))
def test_the_first_move_of_each_control_is_answered_from_the_table(visit, case, way, record_property):
    """Python can't be loaded at all here, and still every first move has the answer that Python gives."""
    on = OnPage(visit, case).open()
    moved = 0
    for name, kind in on.controls():
        before = on.state()
        MOVES[way](on, name, kind)
        on.page.wait_for_function(
            f"() => new URLSearchParams(location.search).has({json.dumps(f'{on.key}.{name}')})"
        )
        assert on.state()[name] != before[name]
        assert on.check() in ("table", "error")
        moved += 1
        on.reset()
    assert moved == len(on.controls()) > 0
    times = on.root.evaluate("(root) => root.times")
    assert len(times) >= moved
    record_property(f"ms: first move from the table, {on.explorer.id}", times)


@pytest.mark.parametrize("path", PAGES)
def test_second_moves_are_computed_in_the_browser_and_kept_in_the_address(visit, path, record_property):
    """Several controls moved at once: not in the table, so Pyodide answers; a reload shows the same states.

    All explorers of a page are moved, one after the other: Python starts once for them.
    """
    visit.open(path)
    moved = []
    for case in PAGES[path]:
        on = OnPage(visit, case).ready()
        live = move_beyond_the_table(on)
        if not live:  # then the table holds everything there is to show
            every = prod(len(control.moves()) for control in on.explorer.controls)
            assert len(on.prepared()) == every
        answered = ("live", "error") if live else ("table", "error")
        assert on.check() in answered, on.key
        assert on.visit.python_requests() or not live
        times = on.root.evaluate("(root) => root.times")
        record_property(f"ms: moves that start or use Python, {on.explorer.id}", times)
        moved.append((on, on.shown(), on.state(), answered))
    assert all("/vendor/" in path for path in visit.python_requests())
    visit.page.reload()
    for on, before, state, answered in moved:
        on.ready()
        assert on.state() == state, on.key
        assert on.check() in answered, on.key
        assert on.shown() == before, on.key
    assert visit.blocked == []
    assert visit.errors == []


@pytest.mark.parametrize("case", PICKED, ids=case_id)
def test_a_click_on_the_figure_sets_its_control(visit, case):
    on = OnPage(visit, case).open()
    name = on.explorer.view_of(on.base()).figure["layout"]["meta"][PICK]
    before = on.state()[name]
    figure = on.root.locator("[data-figure]")
    figure.scroll_into_view_if_needed()
    on.page.wait_for_selector(f'[data-key="{on.key}"] [data-figure][data-pick] .nsewdrag')
    area = figure.locator(".nsewdrag").first.bounding_box()
    # A row of six bars has a gap in its middle: this is the fourth, and of a square of ranks one below it.
    on.page.mouse.click(area["x"] + 0.6 * area["width"], area["y"] + 0.58 * area["height"])
    on.page.wait_for_function(
        f"() => new URLSearchParams(location.search).has({json.dumps(f'{on.key}.{name}')})"
    )
    assert on.state()[name] != before
    assert on.check() in ("table", "live")


@pytest.mark.parametrize("visit", [{"javascript": False}], indirect=True, ids=["without-scripts"])
@pytest.mark.parametrize("case", EXPLORERS, ids=case_id)
def test_the_first_paint_needs_no_script(visit, case):
    """Controls, numbers and the table stand in the page's own HTML."""
    on = OnPage(visit, case)
    visit.open(on.path)
    texts = on.root.locator("[data-readout] .pdt-number").all_text_contents()
    given = parsed(on.path)
    assert given.explorers
    view = on.explorer.view_of(on_base(on))
    assert texts == [readout.text for readout in view.readouts]
    rows = on.root.locator("[data-alternative] tbody tr")
    assert rows.count() == len(view.table.rows)


def on_base(on):
    boxes = on.root.locator("[data-for]")
    names = [boxes.nth(i).get_attribute("data-for") for i in range(boxes.count())]
    return {name: on.box(name).locator("[data-base]").first.get_attribute("data-base") for name in names}


@pytest.mark.parametrize("case", EXPLORERS, ids=case_id)
def test_the_job_is_carried_and_downloaded(visit, case):
    """The job of the default view: downloaded as TOML that loads, and carried to an explorer."""
    on = OnPage(visit, case)
    view = on.explorer.view_of(on_base(on.open()))
    button = on.root.locator('[data-action="download"]')
    assert (button.count() == 1) == (on.explorer.adopt_job is not None)
    if on.explorer.adopt_job is None:
        return
    assert button.is_enabled() == bool(view.job)
    if not view.job:
        return
    with on.page.expect_download() as download:
        button.click()
    text = download.value.path().read_text(encoding="utf-8")
    assert text == view.job
    assert job.to_dict(job.loads(text, format="toml"))
    on.root.locator('[data-action="carry"]').click()
    on.root.locator('[data-action="adopt"]').click()
    on.root.locator("[data-status]").get_by_text(say("page.adopted")).wait_for(timeout=120_000)
    assert on.state() == {**on.base(), **on.explorer.adopt(text)}
    on.check()
