"""Definitions, reports, the child process, notebooks, the command and the page's HTML."""

import importlib
import json
import re
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pdtlib import exercises
from pdtlib.cli.app import main
from pdtlib.exercises import page, process
from pdtlib.exercises.answer import source_of
from pdtlib.exercises.bridge import grade as bridge_grade
from pdtlib.exercises.notebook import MIME, markdown
from pdtlib.exercises.report import Check, Report
from pdtlib.exercises.source import ReaderCode, ReaderError, captured

IN_BROWSER = [id for id in exercises.ids() if exercises.get(id).runs_in == "browser"]


def test_chapters_one_and_two_have_their_exercises():
    chapters = [exercises.get(id).chapter for id in exercises.ids()]
    assert chapters.count(1) == 2
    assert chapters.count(2) == 7


@pytest.mark.parametrize("id", exercises.ids())
def test_every_exercise_is_complete(id):
    exercise = exercises.get(id)
    assert len(exercise.hints) == 3
    assert all(exercise.hints)
    assert "Graded" in exercise.prompt
    assert re.search(rf"(def|class) {exercise.entry}\b", exercise.starter)
    assert re.search(rf"(def|class) {exercise.entry}\b", exercise.solution)
    assert exercise.starter != exercise.solution


@pytest.mark.parametrize("id", exercises.ids())
def test_texts_have_no_formulas_that_nothing_renders(id):
    exercise = exercises.get(id)
    for text in (exercise.prompt, *exercise.hints):
        prose = re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)
        assert "$" not in prose


@pytest.mark.parametrize("id", exercises.ids())
def test_the_printed_call_hands_over_all_that_the_grader_asks_for(id, tmp_path, monkeypatch):
    """The functions of a solution in a notebook, as page and notebook tell the reader to name them."""
    exercise = exercises.get(id)
    (tmp_path / "notebook_of_a_reader.py").write_text(exercise.solution, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "notebook_of_a_reader", raising=False)
    reader = importlib.import_module("notebook_of_a_reader")
    printed = re.search(r'exercises.check\(".*?", (.*)\)', markdown(exercise))[1]
    assert exercise.entry in printed.split(", ")
    source = source_of(*(getattr(reader, name) for name in printed.split(", ")))
    if exercise.runs_in == "browser":
        assert exercise.grade(source).passed
    else:
        assert {name for name in exercise.names if name not in ReaderCode(source).namespace()} == set()


def test_an_unknown_exercise_names_the_known_ones():
    with pytest.raises(ValueError, match=r"'ch01-nothing'.*ch01-param-count"):
        exercises.get("ch01-nothing")


def test_the_same_seed_asks_the_same_and_another_seed_asks_something_else():
    exercise = exercises.get("ch01-param-count")
    reports = [exercise.grade(exercise.starter, seed=seed) for seed in (7, 7, 8)]
    expected = [[check.expected for check in report.checks] for report in reports]
    assert expected[0] == expected[1]
    assert expected[0] != expected[2]


def test_without_a_seed_every_grading_asks_something_else():
    exercise = exercises.get("ch01-param-count")
    first, second = exercise.grade(exercise.solution), exercise.grade(exercise.solution)
    assert first.seed != second.seed
    assert first.passed
    assert second.passed


def test_a_report_survives_json():
    check = Check(name="a", passed=False, message="b", expected="1", got="2")
    report = Report(id="x", seed=3, checks=(check, Check(name="c", passed=True)), output="hello")
    assert Report.from_dict(json.loads(json.dumps(report.to_dict()))) == report
    assert report.to_dict()["score"] == 0.5
    assert not report.passed
    for part in ("FAIL  a", "expected  1", "got       2", "pass  c", "hello", "1 of 2 checks"):
        assert part in report.text()


def test_a_report_without_checks_has_not_passed():
    assert not Report(id="x", seed=0, checks=()).passed


# The reader's code


def graded(source, id="ch02-ring-all-reduce"):
    return exercises.get(id).grade(source, seed=1)


def test_an_error_is_shown_with_the_readers_line():
    text = graded("def all_reduce(comm, data):\n    x = [1]\n    return x[5]\n    yield\n").text()
    assert "Line 3, in all_reduce:" in text
    assert "return x[5]" in text
    assert "IndexError: list index out of range" in text
    assert "simulator.py" not in text


def test_a_syntax_error_is_shown_with_its_line():
    text = graded("def all_reduce(comm, data)\n    pass\n").text()
    assert "Line 1:" in text
    assert "SyntaxError: expected ':'" in text


def test_a_missing_function_is_named():
    assert "defines no all_reduce. It defines reduce" in graded("def reduce(comm, data):\n    yield\n").text()


def test_prints_are_shown_and_bounded():
    report = graded("print('top')\ndef all_reduce(comm, data):\n    print('x' * 9000)\n    yield\n")
    assert report.output.count("top") == 1
    assert "output cut here" in report.output
    assert len(report.output) < 30_000


@pytest.mark.parametrize(
    "what", ["raise SystemExit(0)", "raise KeyboardInterrupt", "raise StopIteration", "exit()"]
)
def test_leaving_the_program_is_a_failure(what):
    for source in (
        f"{what}\n",
        f"def all_reduce(comm, data):\n    {what}\n",
        f"def all_reduce(comm, data):\n    yield comm.recv(source=1 - comm.rank)\n    {what}\n",
    ):
        assert not graded(source).passed


def test_nobody_answers_input():
    assert "nobody answers input()" in graded("x = input()\ndef all_reduce(comm, data):\n    yield\n").text()


def test_a_lesson_is_written_once():
    messages = [check.message for check in graded("def all_reduce(comm, data):\n    1 / 0\n").checks]
    assert "ZeroDivisionError" in messages[0]
    assert set(messages[1:]) == {"As above."}


def test_replacing_stdout_does_no_harm():
    with captured() as output:
        ReaderCode("import sys\nsys.stdout = None\n").namespace()
        print("still here", file=output)
    assert "still here" in output.getvalue()
    assert sys.stdout is not None


def test_two_runs_share_no_globals():
    code = ReaderCode(
        "board = []\ndef f(x, seen=[]):\n    board.append(x)\n    seen.append(x)\n"
        "    return len(board), len(seen)\n"
    )
    assert [code.function("f")(1), code.function("f")(1)] == [(1, 1), (1, 1)]


def test_pdtlib_is_not_at_hand():
    with pytest.raises(ReaderError, match="holds the answer"):
        ReaderCode("import pdtlib.plan.params\n").namespace()


# The child process


def test_an_endless_loop_is_stopped_with_its_line():
    source = "def all_reduce(comm, data):\n    print('started')\n    while True:\n        pass\n    yield\n"
    report = process.grade(exercises.get("ch02-ring-all-reduce"), source, seed=1, time_limit_s=5)
    assert not report.passed
    assert "does a loop never end?" in report.text()
    assert re.search(r"at line [34], in all_reduce", report.text())
    assert "started" in report.output


def test_a_process_that_dies_is_a_failure():
    source = "import os\ndef all_reduce(comm, data):\n    os._exit(0)\n    yield\n"
    report = process.grade(exercises.get("ch02-ring-all-reduce"), source, seed=1)
    assert not report.passed
    assert "ended with exit code 0 before the checks were done" in report.text()


def test_no_process_is_left_behind(tmp_path):
    alive = tmp_path / "alive"
    child = (
        f"import time, pathlib\nwhile True:\n    pathlib.Path({str(alive)!r}).touch()\n    time.sleep(0.05)\n"
    )
    source = (
        f"import pathlib, subprocess, sys, time\nalive = pathlib.Path({str(alive)!r})\n"
        f"if not alive.exists():\n    subprocess.Popen([sys.executable, '-c', {child!r}])\n"
        "while not alive.exists():\n    time.sleep(0.05)\n"
        "def all_reduce(comm, data):\n    yield\n"
    )
    process.grade(exercises.get("ch02-ring-all-reduce"), source, seed=1)
    alive.unlink()
    time.sleep(1)
    assert not alive.exists()


# Notebooks


def helper(x):
    return x


def param_count(model):
    return helper(len(MIME))


def count_of(cls):
    cls.decorated = True
    return cls


class Base:
    def nothing(self):
        return None


@count_of
class Counter(Base):
    def count(self, limit=MIME):
        return helper(len(json.dumps(limit)))


@pytest.fixture
def in_notebook(monkeypatch):
    """Names of this module look as if a notebook's cells had defined them."""
    for item in (helper, param_count, count_of, Base, Counter):
        monkeypatch.setattr(item, "__module__", "__main__")


def test_a_functions_source_comes_with_what_it_uses(in_notebook):
    namespace: dict = {}
    exec(source_of(param_count), namespace)
    assert namespace["param_count"](None) == len(MIME)


def test_a_classes_source_comes_with_what_it_uses(in_notebook):
    namespace: dict = {}
    exec(source_of(Counter), namespace)
    assert namespace["Counter"]().count() == len(MIME) + 2
    assert namespace["Counter"].decorated
    assert issubclass(namespace["Counter"], namespace["Base"])


def test_a_source_is_text_or_a_file(tmp_path):
    file = tmp_path / "answer.py"
    file.write_text("x = 1\n")
    assert source_of(file) == source_of(str(file)) == source_of("x = 1\n") == "x = 1\n"
    with pytest.raises(ValueError, match="cannot be read"):
        source_of(tmp_path / "missing.py")
    with pytest.raises(ValueError, match="give source text"):
        source_of(3)


def test_check_grades_a_function(in_notebook):
    report = exercises.check("ch01-param-count", param_count, seed=1)
    assert not report.passed
    assert len(report.checks) == 10
    assert exercises.check("ch01-param-count", exercises.get("ch01-param-count").solution, seed=1).passed


def test_the_notebook_text_tells_how_to_grade():
    text = markdown(exercises.get("ch02-zero3"))
    assert 'exercises.check("ch02-zero3", zero3_linear)' in text
    assert text.count("<details>") == 4


@pytest.mark.parametrize(("book", "kind"), [("1", MIME), ("", "text/markdown")])
def test_show_serves_the_book_or_the_notebook(monkeypatch, book, kind):
    shown = []
    monkeypatch.setenv("PDTLIB_BOOK", book)
    monkeypatch.setattr(
        "IPython.display.display",
        lambda thing, raw=False: shown.append(thing if raw else {"text/markdown": thing.data}),
    )
    exercises.show("ch01-param-count")
    assert kind in shown[0]
    if book:
        assert shown[0][kind] == {"id": "ch01-param-count"}


# The command


def run_command(capsys, *arguments):
    with pytest.raises(SystemExit) as left:
        main(["grade", *arguments])
    return left.value.code, *capsys.readouterr()


def test_the_command_grades_a_file(tmp_path, capsys):
    exercise = exercises.get("ch02-token-mean")
    right, wrong = tmp_path / "right.py", tmp_path / "wrong.py"
    right.write_text(exercise.solution, encoding="utf-8")
    wrong.write_text(exercise.starter, encoding="utf-8")
    code, out, _ = run_command(capsys, exercise.id, str(right), "--json")
    assert code == 0
    assert json.loads(out)["passed"] is True
    code, out, _ = run_command(capsys, exercise.id, str(wrong), "--seed", "4")
    assert code == 1
    assert "mean of means" in out
    assert "(seed 4)" in out


def test_the_command_lists_and_gives_starters(capsys):
    code, out, _ = run_command(capsys, "--list", "--json")
    assert code == 0
    assert [row["id"] for row in json.loads(out)] == list(exercises.ids())
    code, out, _ = run_command(capsys, "ch02-zero1", "--starter")
    assert (code, out) == (0, exercises.get("ch02-zero1").starter)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["ch07-none", "x.py"], "does not exist"),
        (["ch02-zero1", "missing.py"], "cannot be read"),
        (["ch02-zero1"], "no file given"),
        ([], "no exercise given"),
    ],
)
def test_a_wrong_call_is_refused(capsys, arguments, says):
    code, out, err = run_command(capsys, *arguments)
    assert code == 2
    assert says in err
    assert out == ""


# The page


class Attributes(HTMLParser):
    """Every data- attribute of a fragment, the ids, and the tags that are still open at the end."""

    VOID = ("br", "hr", "img", "input", "meta", "link")

    def __init__(self, html):
        super().__init__()
        self.data, self.ids, self.open = [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.data += [name for name, _ in attrs if name.startswith("data-")]
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("id", exercises.ids())
def test_the_page_has_all_parts(id):
    html = page.html(id)
    found = Attributes(html)
    assert found.open == []
    assert len(found.ids) == len(set(found.ids))
    assert found.data.count("data-hint") == 3
    assert "data-solution" in found.data
    if exercises.get(id).runs_in == "browser":
        for name in ("data-editor", "data-run", "data-stop", "data-reset", "data-status", "data-report"):
            assert found.data.count(name) == 1
        starter = re.search(r"data-starter>(.*?)</script>", html, re.DOTALL)
        assert json.loads(starter[1])["source"] == exercises.get(id).starter.rstrip("\n")
    else:
        assert f"pdt grade {id}" in re.sub("<[^>]*>", "", html)
        assert "download=" in html
    assert "https://" not in html


# The browser's part


@pytest.mark.parametrize("id", IN_BROWSER)
def test_graders_for_the_browser_need_only_the_standard_library(id):
    """In an interpreter without site-packages, as in the page."""
    root = Path(exercises.__file__).parents[2]
    program = (
        f"import sys; sys.path.insert(0, {str(root)!r})\n"
        "from pdtlib.exercises.bridge import grade\n"
        f"from pdtlib.exercises import get\nprint(grade({id!r}, get({id!r}).solution)['passed'])\n"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'torch', 'numpy', 'typer', 'IPython'}))\n"
    )
    run = subprocess.run(
        [sys.executable, "-S", "-I", "-c", program], capture_output=True, text=True, timeout=60
    )
    assert run.stdout == "True\n[]\n", run.stderr


def test_the_bridge_answers_in_plain_values():
    answer = bridge_grade("ch01-param-count", "def param_count(model):\n    return 0\n")
    assert json.loads(json.dumps(answer))["passed"] is False
