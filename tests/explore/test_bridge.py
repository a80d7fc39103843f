"""The door through which the page calls Python: JSON in and out, every exception told."""

import json

from pdtlib.explore import bridge, bundle, catalog


def call(name, **arguments):
    return json.loads(bridge.call("pdtlib.explore.bridge", name, json.dumps(arguments)))


def test_a_view_as_the_page_gets_it():
    answer = call("view", id="zero", state={"ranks": "64", "model": "7.5b"})
    assert answer["ok"] == json.loads(
        json.dumps(catalog.get("zero").view_of({"ranks": 64, "model": "7.5b"}).to_dict())
    )


def test_an_error_names_the_control():
    error = call("view", id="training-time", state={"tokens": "many"})["error"]
    assert error["type"] == "ControlError"
    assert error["field"] == "tokens"
    assert "many" in error["message"]


def test_what_changed_term_by_term():
    table = call("compare", id="memory-stack", state={"tp": "8"}, pinned={})["ok"]
    rows = {row[0]: row[1:] for row in table["rows"]}
    assert rows["parameters"] == ["140 GB", "17.5 GB", "−122.5 GB (−87.5 %)"]
    assert rows["memory of one A100-SXM4-80"][-1] == "same"


def test_a_job_is_adopted():
    job = catalog.get("zero").view_of({"model": "llama3-70b", "ranks": 64, "stage": 3}).job
    state = call("adopt", id="memory-stack", job=job)["ok"]
    assert (state["model"], state["dp"], state["zero"]) == ("llama3-70b", "64", "3")


def test_a_job_that_cannot_be_read_is_refused():
    error = call("adopt", id="zero", job="[model]\nlayers = 0")["error"]
    assert error["type"] == "JobError"
    assert "layers" in error["message"]


def test_nothing_outside_pdtlib_is_called():
    assert json.loads(bridge.call("os", "getcwd", "{}"))["error"]["type"] == "ValueError"


def test_an_exit_does_not_end_the_worker(monkeypatch):
    def leave():
        raise SystemExit(3)

    monkeypatch.setattr(bridge, "leave", leave, raising=False)
    assert call("leave")["error"]["type"] == "SystemExit"


def test_the_bundle_is_the_same_for_the_same_sources(tmp_path):
    first, second = (bundle.write_zip(tmp_path / name).read_bytes() for name in ("a.zip", "b.zip"))
    assert first == second
    names = {file.name for file in bundle.files()}
    assert {"bridge.py", "words.toml", "states.py"} <= names
    assert "explorer.js" not in names
