"""Figures, words and numbers are the same in the reader's browser as here, byte for byte.

At least 200 states of every explorer, drawn at random over all controls, are evaluated by this interpreter
and by Pyodide under Node, and compared as canonical JSON.
"""

import json
import random
import subprocess
from pathlib import Path

import pytest

from pdtlib.book.vendor import node, pyodide_dir
from pdtlib.explore import bundle, catalog
from pdtlib.explore.bridge import call
from pdtlib.explore.controls import Number

STATES = 220
TYPED = ("1e6", "123456789", "7.5B", "13B", "1.4T", "300M", "nothing", "3.7e11")
SCRIPT = Path(__file__).with_name("pyodide_views.mjs")


def random_states(explorer):
    """States over all controls; in one of four a number is typed, now and then one that is refused."""
    draw = random.Random(explorer.id)
    numbers = [control.name for control in explorer.controls if isinstance(control, Number)]
    states = []
    for _ in range(STATES):
        state = {control.name: draw.choice(control.moves()) for control in explorer.controls}
        if numbers and draw.random() < 0.25:
            state[draw.choice(numbers)] = draw.choice(TYPED)
        states.append(state)
    return states


def here(request):
    answer = json.loads(call("pdtlib.explore.bridge", "view", json.dumps(request)))
    answer.get("error", {}).pop("traceback", None)
    return json.dumps(answer, sort_keys=True)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """The requests, and Pyodide's answer to each."""
    folder = tmp_path_factory.mktemp("pyodide")
    requests = [{"id": id, "state": state} for id in catalog.IDS for state in random_states(catalog.get(id))]
    (folder / "states.json").write_text(json.dumps(requests), encoding="utf-8")
    archive = bundle.write_zip(folder / "pdtlib.zip")
    run = subprocess.run(
        [node(), SCRIPT, pyodide_dir(), archive, folder / "states.json"],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    lines = run.stdout.splitlines()
    assert len(lines) == len(requests)
    return list(zip(requests, lines, strict=True))


@pytest.mark.parametrize("id", catalog.IDS)
def test_pyodide_gives_the_same_views(answers, id):
    mine = [(request["state"], line) for request, line in answers if request["id"] == id]
    assert len(mine) >= 200
    different = [state for state, line in mine if line != here({"id": id, "state": state})]
    assert different == []
    assert sum(line.startswith('{"ok"') for _, line in mine) > len(mine) / 4


def test_a_difference_would_be_found(answers):
    request, line = answers[0]
    moved = {**request, "state": {**request["state"], "gpu": "H20"}}
    assert here(moved) != line
