"""Explorers planner, config-lint and prefetch: the chapter's numbers, and what edits do."""

import json

import pytest

from pdtlib.explore import catalog
from pdtlib.explore.controls import ControlError
from pdtlib.explore.explorers.config_lint import edited
from pdtlib.figures import planner as drawing
from pdtlib.plan.lint import lint_deepspeed
from pdtlib.plan.lint.article import KEYS, REPAIRED, as_yaml

PLANNER, LINT, PREFETCH = (catalog.get(id) for id in ("planner", "config-lint", "prefetch"))


def readouts(explorer, **state):
    return {readout.name: readout for readout in explorer.view_of(state).readouts}


@pytest.mark.parametrize(("depth", "seconds"), [(0, 0.8), (1, 0.45), (2, 0.45)])
def test_eight_layers_of_50_and_50_ms(depth, seconds):
    got = readouts(PREFETCH, depth=depth)
    assert got["end"].value == pytest.approx(seconds)
    assert got["saved"].value == pytest.approx(0.8 - seconds)
    assert got["live"].value == depth + 1


def test_only_uneven_layers_gain_from_more_than_one_ahead():
    for uneven, gains in ((1, False), (6, True)):
        ends = [readouts(PREFETCH, depth=depth, uneven=uneven)["end"].value for depth in (1, 2, 3)]
        assert (ends[2] < ends[0] - 1e-9) == gains


def test_the_articles_file_does_not_start():
    got = readouts(LINT)
    assert got["outcome"].text == "does not start"
    assert got["precision"].text == "fp32"
    assert LINT.view_of().summary.startswith("The file as a whole is refused.")
    rows = {row[0]: row[1] for row in LINT.view_of().table.rows}
    assert rows["tensor_parallel.size"] == "refused"
    assert rows["pipeline_parallel"] == "passed over"
    assert rows["zero_optimization.sub_group_size"] == "refused"  # a text, as YAML reads it
    assert {row[0]: row[1] for row in LINT.view_of({"file": "keys"}).table.rows}[
        "zero_optimization.sub_group_size"
    ] == "read"


@pytest.mark.parametrize(("file", "read", "keys"), [("yaml", 7, 16), ("keys", 9, 15)])
def test_notes_on_the_whole_file_are_no_keys(file, read, keys):
    """As YAML the wrapper is a key more."""
    view = LINT.view_of({"file": file})
    got = readouts(LINT, file=file)["read"]
    assert got.value == read
    assert got.note == f"of {keys} in the file"
    assert f"{read} of {keys} keys are read" in view.summary
    assert sum(swatch.value for swatch in view.legend) == keys
    words = {row[1] for row in view.table.rows if row[0] == "(the whole file)"}
    assert words == ({"refused", "a note"} if file == "yaml" else {"a note"})


def test_the_repaired_file_starts_as_written():
    assert {verdict.verdict for verdict in lint_deepspeed(json.dumps(REPAIRED))} == {"ok"}
    assert readouts(LINT, file="repaired")["outcome"].text == "starts as written"
    assert "5e8" in as_yaml()


def test_edits_put_in_and_take_out_keys():
    text = "tensor_parallel.autotp_size=8, -tensor_parallel.size, -num_chunks, bf16.enabled=true"
    changed = edited(KEYS, text)
    assert changed["tensor_parallel"] == {"autotp_size": 8}
    assert changed["bf16"] == {"enabled": True}
    assert "num_chunks" not in changed
    assert KEYS["num_chunks"] == 2
    before, after = (readouts(LINT, file="keys", edits=edits) for edits in ("", text))
    assert (before["off"].value, after["off"].value) == (4, 3)
    assert after["precision"].text == "16 bit"


@pytest.mark.parametrize("wrong", ["stage 3", "=4", "num_chunks.size=3"])
def test_wrong_edits_are_refused(wrong):
    with pytest.raises(ControlError) as caught:
        LINT.view_of({"file": "keys", "edits": wrong})
    assert caught.value.field == "edits"


def test_plans_stand_in_order_and_their_parts_add_up():
    view = PLANNER.view_of()
    times = [row for row in view.figure["data"] if row.get("xaxis") != "x2"]
    steps = [sum(parts) for parts in zip(*(trace["x"] for trace in times), strict=True)]
    assert steps == sorted(steps)
    first = readouts(PLANNER)
    assert first["step"].value == pytest.approx(steps[0])
    assert readouts(PLANNER, rank=3)["step"].value == pytest.approx(steps[2])
    assert first["memory"].value <= 80e9
    assert "does not fit in the GPU's memory" in {row[4] for row in view.table.rows}
    assert sum(swatch.value for swatch in view.legend) == pytest.approx(steps[0])
    assert len(drawing.PARTS) == len(view.legend)


@pytest.mark.parametrize(
    ("near", "text"), [(0.05, "All 6 plans shown lie within"), (0.0, "1 of the 6 plans shown lie within")]
)
def test_near_the_best_are_counted_among_those_shown(monkeypatch, near, text):
    monkeypatch.setattr("pdtlib.explore.explorers.planner.NEAR", near)
    assert any(note.startswith(text) for note in PLANNER.view_of().notes)


def test_layouts_that_recompute_without_need_are_said_to_fit():
    got = readouts(PLANNER)["fits"]
    assert (got.value, got.note) == (248, "66 more fit, but recompute without need")


def test_what_fits_nowhere_says_why():
    with pytest.raises(ControlError, match="does not fit"):
        PLANNER.view_of({"gpus": 8})
