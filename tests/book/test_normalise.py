"""Notebooks: their normal form, and that a wrong number in one is found."""

import copy
import json
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from pdtlib.book import normalise

ROOT = Path(__file__).parents[2]


def notebook(*cells):
    return new_notebook(
        cells=list(cells),
        metadata={"colab": {"provenance": []}, "kernelspec": {"name": "mine", "display_name": "Mine"}},
    )


def printed(text, source="print(1)", **metadata):
    return new_code_cell(
        source, execution_count=7, outputs=[new_output("stream", text=text)], metadata=metadata
    )


def test_the_normal_form_is_reached_in_one_step():
    once = normalise.normal_form(
        notebook(
            new_markdown_cell("text  \n"),
            printed("1\n"),
            printed("1\n", collapsed=True),
            printed("2\n", "f()"),
        )
    )
    assert normalise.text(normalise.normal_form(once)) == normalise.text(once)
    nbformat.validate(once)
    assert once.metadata == normalise.METADATA
    assert [cell.metadata for cell in once.cells] == [{}, {}, {}, {}]
    assert [cell.execution_count for cell in once.cells[1:]] == [1, 2, 3]
    assert len({cell.id for cell in once.cells}) == 4


def test_ids_follow_the_source_alone():
    first, second = (normalise.normal_form(notebook(printed("1\n"))) for _ in range(2))
    assert first.cells[0].id == second.cells[0].id
    longer = normalise.normal_form(notebook(new_markdown_cell("before"), printed("1\n")))
    assert longer.cells[1].id == first.cells[0].id


@pytest.mark.parametrize("tag", sorted(normalise.UNCOMPARED))
def test_outputs_made_at_build_time_are_not_stored(tag):
    cell = normalise.normal_form(notebook(printed("1.234 s\n", tags=[tag, "hide-input"]))).cells[0]
    assert cell.outputs == []
    assert cell.execution_count is None
    assert cell.metadata.tags == sorted([tag, "hide-input"])
    assert normalise.problems(notebook(printed("1.234 s\n", tags=[tag]))) == []


def test_a_cell_that_would_not_be_compared_is_reported():
    never = new_code_cell("print(1)")
    assert "never executed" in normalise.problems(notebook(never))[0]
    shown = new_code_cell(
        "plot()",
        execution_count=1,
        outputs=[new_output("display_data", data={"application/vnd.plotly.v1+json": {}, "text/plain": "x"})],
    )
    assert "application/vnd.plotly.v1+json" in normalise.problems(notebook(shown))[0]
    noisy = new_code_cell(
        "w()", execution_count=1, outputs=[new_output("stream", name="stderr", text="warning")]
    )
    assert "stderr" in normalise.problems(notebook(noisy))[0]


def test_check_changes_nothing_and_fails_where_rewriting_would_change(tmp_path, capsys):
    path = tmp_path / "n.ipynb"
    path.write_text(nbformat.writes(notebook(printed("1\n"))), encoding="utf-8")
    before = path.read_text(encoding="utf-8")
    assert normalise.main(["--check", str(path)]) == 1
    assert path.read_text(encoding="utf-8") == before
    assert normalise.main([str(path)]) == 0
    assert normalise.main(["--check", str(path)]) == 0
    assert "normal form" in capsys.readouterr().out


def test_execute_fills_in_what_nbval_compares(tmp_path):
    path = tmp_path / "n.ipynb"
    source = "from pdtlib.book import number\nnumber('seven', 7, '{:.1f}')\nprint(3 + 4)"
    path.write_text(nbformat.writes(notebook(new_code_cell(source))), encoding="utf-8")
    assert normalise.main(["--execute", str(path)]) == 0
    cell = normalise.read(path).cells[0]
    assert cell.execution_count == 1
    assert [o.text for o in cell.outputs if o.output_type == "stream"] == ["7\n"]
    assert any(mime.startswith(normalise.GLUE) for o in cell.outputs for mime in o.get("data", {}))
    assert nbval(path).returncode == 0


def nbval(path):
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--nbval",
        "--nbval-current-env",
    ]
    command += [
        "--nbval-cell-timeout=120",
        "--nbval-sanitize-with",
        str(ROOT / "tests/nbval_sanitize.cfg"),
        str(path),
    ]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)


def compared_numbers(notebook):
    """The cells that nbval compares and whose stored outputs hold a number."""
    for index, cell in enumerate(notebook.cells):
        if normalise.is_compared(cell) and re.search(r"\d", json.dumps(cell.outputs)):
            yield index


def plant(cell):
    """Change the first digit of the first output that has one."""
    for output in cell.outputs:
        holder, key = (output, "text") if "text" in output else (output.data, next(iter(output.data)))
        changed, count = re.subn(r"\d", lambda m: str((int(m[0]) + 1) % 10), holder[key], count=1)
        if count:
            holder[key] = changed
            return
    raise AssertionError("no digit in the outputs")


def test_the_book_has_notebooks():
    assert normalise.notebooks()


@pytest.mark.parametrize("path", normalise.notebooks(), ids=lambda path: path.stem)
def test_a_planted_wrong_number_is_found(path, tmp_path):
    """The first cells of the chapter pass as they are, and fail with one digit changed."""
    whole = normalise.read(path)
    last = next(compared_numbers(whole))
    whole.cells = [
        c for c in whole.cells[: last + 1] if not normalise.UNCOMPARED & set(c.metadata.get("tags", []))
    ]
    right, wrong = tmp_path / "right.ipynb", tmp_path / "wrong.ipynb"
    right.write_text(normalise.text(whole), encoding="utf-8")
    planted = copy.deepcopy(whole)
    plant(planted.cells[-1])
    wrong.write_text(normalise.text(planted), encoding="utf-8")
    assert (done := nbval(right)).returncode == 0, done.stdout
    done = nbval(wrong)
    assert done.returncode == 1, done.stdout
    assert "1 failed" in done.stdout


@pytest.mark.parametrize("path", normalise.notebooks(), ids=lambda path: path.stem)
def test_every_deterministic_cell_is_compared(path):
    """No cell without a count slips through, and the notebook does compare numbers."""
    assert normalise.problems(normalise.read(path)) == []
    fewest = 3 if path.stem[:2].isdigit() else 1  # chapters; other pages may be one list
    assert len(list(compared_numbers(normalise.read(path)))) >= fewest
