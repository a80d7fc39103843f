"""The live widget: built, moved and wrong input told, in a kernel without a browser."""

from html import unescape

import nbformat
import pytest
from nbclient import NotebookClient

from pdtlib.explore import catalog
from pdtlib.explore.controls import Number
from pdtlib.explore.live import Live


def test_in_a_kernel_a_control_moves_the_figure():
    cells = [
        "from pdtlib.explore import catalog, show\nfrom pdtlib.explore.live import Live",
        "show('zero', ranks=64)",
        "explorer = catalog.get('zero')\nlive = Live(explorer, explorer.state())",
        "before = live.figure.to_json()\nlive.inputs['ranks'].value = 64\nafter = live.figure.to_json()",
        "print(after != before, 'on 64 GPUs' in live.summary.value)",
        "try:\n    show('zero', ranks=7)\nexcept ValueError as error:\n    print(error)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    outputs = [cell.outputs for cell in notebook.cells]
    assert "application/vnd.jupyter.widget-view+json" in outputs[1][0]["data"]
    assert outputs[4][0]["text"] == "True True\n"
    assert "7 is not one of" in outputs[5][0]["text"]


def test_in_the_books_build_it_leaves_a_mark(monkeypatch):
    import pdtlib.explore.notebook as notebook

    shown = []
    monkeypatch.setenv("PDTLIB_BOOK", "1")
    monkeypatch.setattr(notebook, "display", lambda bundle, raw: shown.append(bundle))
    notebook.show_explorer("zero", {"ranks": 64})
    assert shown[0]["application/vnd.pdtlib.explorer+json"] == {"id": "zero", "state": {"ranks": "64"}}
    assert "64" in shown[0]["text/plain"]


@pytest.mark.parametrize("id", catalog.IDS)
def test_every_control_moves_the_widget(id):
    explorer = catalog.get(id)
    for control in explorer.controls:
        if not control.applies(explorer.state()) or not control.moves():
            continue
        widget = Live(explorer, explorer.state())
        moved = next(key for key in control.moves() if key != explorer.state()[control.name])
        value = moved if isinstance(control, Number) else control.parse(moved)
        widget.inputs[control.name].value = value
        assert widget.state()[control.name] == moved
        assert widget.problem.value == ""
        if not any(message.value for message in widget.errors.values()):
            assert explorer.view_of({control.name: moved}).summary in unescape(widget.summary.value)


def test_wrong_input_is_told_beside_the_control_and_the_old_answer_stays():
    explorer = catalog.get("training-time")
    widget = Live(explorer, explorer.state())
    summary = widget.summary.value
    widget.inputs["tokens"].value = "many"
    assert "not a number" in widget.errors["tokens"].value
    assert widget.summary.value == summary
    widget.inputs["tokens"].value = "2T"
    assert widget.errors["tokens"].value == ""
    assert widget.summary.value != summary


def test_the_player_has_the_steps_that_there_are():
    explorer = catalog.get("ring-all-reduce")
    widget = Live(explorer, explorer.state())
    widget.inputs["ranks"].value = 8
    widget.inputs["step"].value = 14
    widget.inputs["ranks"].value = 2
    assert widget.state()["step"] == "2"
