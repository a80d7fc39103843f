"""The static page: its table answers every first move, and it stays small."""

import gzip
import json
from html.parser import HTMLParser

import pytest

from pdtlib.explore import catalog, page
from pdtlib.explore.controls import ControlError

IDS = catalog.IDS
PAGE_BUDGET = 2_000_000


def answer(explorer, state):
    try:
        return json.loads(json.dumps(explorer.view_of(state).to_dict()))
    except ControlError as error:
        return {"error": {"type": "ControlError", "message": str(error), "field": error.field}}


@pytest.mark.parametrize("id", IDS)
def test_the_table_answers_every_move_of_one_control(id):
    explorer = catalog.get(id)
    (content,) = page.files(id).values()
    table = json.loads(content)
    shared = table.get("panels", [])
    for view in table.values():
        if isinstance(view, dict) and "panels" in view:
            view["panels"] = [shared[place] for place in view["panels"]]
    base = explorer.state()
    for control in explorer.controls:
        for key in control.moves() if control.applies(base) else ():
            name = "" if key == base[control.name] else f"{control.name}={key}"
            assert table[name] == answer(explorer, {control.name: key})


def test_the_table_follows_the_state_that_the_author_chose():
    (content,) = page.files("zero", {"ranks": 64}).values()
    table = json.loads(content)
    assert table[""] == json.loads(json.dumps(catalog.get("zero").view_of({"ranks": 64}).to_dict()))
    assert "ranks=8" in table
    assert "ranks=64" not in table


def test_the_ring_is_played_from_the_table_for_every_number_of_ranks():
    (content,) = page.files("ring-all-reduce").values()
    table = json.loads(content)
    assert all(f"ranks={ranks}&step={step}" in table for ranks in (2, 8) for step in range(1, 15))


def test_all_explorers_together_fit_into_one_page_with_plotly_to_spare():
    """All but the playground, which has a page of its own and half as much room."""
    plotly_gzip = 500_000
    sizes = {
        id: sum(len(gzip.compress(text)) for text in (page.html(id).encode(), *page.files(id).values()))
        for id in IDS
    }
    playground = sizes.pop("playground")
    assert sum(sizes.values()) + plotly_gzip < PAGE_BUDGET / 2
    assert playground + plotly_gzip < 0.75 * PAGE_BUDGET / 2


@pytest.mark.parametrize("id", IDS)
def test_the_fragment_names_its_table(id):
    (name,) = page.files(id)
    assert f'data-table="{name}"' in page.html(id)


class Elements(HTMLParser):
    """Every element with its attributes."""

    def __init__(self, text):
        super().__init__()
        self.found, self.open = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in ("input", "option", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag != "option":
            assert self.open.pop() == tag


@pytest.mark.parametrize("id", IDS)
def test_the_fragment_is_whole_and_every_control_is_labelled(id):
    elements = Elements(page.html(id))
    assert elements.open == []
    labels = {attrs.get("for") for tag, attrs in elements.found if tag == "label"}
    ids = [attrs["id"] for _, attrs in elements.found if "id" in attrs]
    assert len(ids) == len(set(ids))
    named = {attrs["data-control"] for _, attrs in elements.found if "data-control" in attrs}
    assert named == {control.name for control in catalog.get(id).controls}
    for tag, attrs in elements.found:
        if tag == "select" or (tag == "input" and attrs["type"] in ("range", "text")):
            assert attrs["id"] in labels
        for described in (attrs.get("aria-describedby") or "").split():
            assert described in ids
        assert "onclick" not in attrs
        if tag == "script":
            assert attrs["type"] == "application/json"


def test_two_of_one_explorer_share_no_id():
    first, second = (Elements(page.html("zero", key=key)) for key in (None, "zero-2"))
    ids = [{attrs["id"] for _, attrs in elements.found if "id" in attrs} for elements in (first, second)]
    assert not ids[0] & ids[1]


def test_first_paint_holds_the_numbers_of_the_default_view():
    text = page.html("zero")
    for readout in catalog.get("zero").view_of().readouts:
        assert readout.text in text
