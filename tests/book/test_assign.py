"""Assignments: starters made from solutions, bad submissions that get a reason, one table of all."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from pdtlib.book import lab as labs
from pdtlib.book.assign import collect, grade_folder, hand_out, read_assignment, students, to_csv
from pdtlib.book.assign.grading import MOST_SOURCE_BYTES, _labels, _run_lab, grade_file
from pdtlib.book.assign.handout import solution, starter, tasks
from pdtlib.book.assign.starter import TODO, NotAnAnswer, assigned, emptied, grafted
from pdtlib.cli import app

LABS = [path.parent.name.split("_")[0] for path in sorted(labs.ROOT.glob("labs/[0-9]*_*/lab.py"))]
COUNT = "ch01-param-count"
LAB = """\
import json


def keep(x):
    \"\"\"Stays.\"\"\"
    return x


@json.loads
def write(x):
    \"\"\"To be
    written.\"\"\"
    y = x  # a comment
    return y


def bare(x): return x


print(keep(1))
"""


def test_an_emptied_function_keeps_signature_and_docstring() -> None:
    text = emptied(LAB, ("write", "bare"))
    assert "y = x" not in text
    assert text.count(TODO) == 2
    assert '"""To be\n    written."""' in text
    assert text.startswith(LAB[: LAB.index("    y = x")])
    compile(text, "lab.py", "exec")
    with pytest.raises(ValueError, match="'absent'; valid: the lab's functions, keep"):
        emptied(LAB, ("absent",))


def test_a_graft_takes_the_answer_and_leaves_the_lab() -> None:
    answer = (
        "from __future__ import annotations\nimport math\nimport json\nLIMIT = 3\n"
        "def helper(x): return math.sqrt(x)\n"
        "def keep(x): return 'forged'\n"
        "def write(x):\n    return helper(x)"
    )
    text = grafted(LAB, answer, ("write",))
    assert "forged" not in text
    assert text.count("import json") == 1
    assert text.index("import math") < text.index("def helper") < text.index("def write")
    assert "LIMIT = 3" in text
    assert "return helper(x)" in text
    assert "@json.loads" not in text
    assert "def bare(x): return x" in text
    compile(text, "lab.py", "exec")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("def write(x:\n", "line 1: "),
        ("def other(x): pass\n", "defines no write"),
        ("x = '\0'\n", "cannot be read as Python"),
        ("(" * 5000, "cannot be read as Python"),
    ],
)
def test_what_cannot_be_grafted_says_why(answer: str, reason: str) -> None:
    with pytest.raises(NotAnAnswer, match=reason):
        grafted(LAB, answer, ("write",))


@pytest.mark.parametrize("number", LABS)
def test_every_lab_has_a_starter(number: str) -> None:
    """Its functions raise, the rest of it is the lab's, and the lab grafted into itself does not change."""
    own = solution(tasks([f"lab-{number}"])[0])
    names = assigned(own)
    assert names
    text = starter(tasks([f"lab-{number}"])[0])
    compile(text, "lab.py", "exec")
    assert text.count(TODO) == len(names)
    assert grafted(own, own, names).replace("\n", "") == own.replace("\n", "")
    assert TODO in grafted(own, text, names)


def test_an_assignment_is_written_and_read(tmp_path: Path) -> None:
    found = hand_out(["01", "ch02-zero3", "lab-02"], tmp_path / "out", with_solutions=True)
    assert [task.id for task in found] == [COUNT, "ch01-largest-batch", "lab-01", "ch02-zero3", "lab-02"]
    assert read_assignment(tmp_path / "out") == found
    readme = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    for task in found:
        assert f"`{task.file}`" in readme
        text = (tmp_path / "out" / task.file).read_text(encoding="utf-8")
        assert text == starter(task) != solution(task)
        assert (tmp_path / "out/solutions" / task.file).read_text(encoding="utf-8") == solution(task)
    with pytest.raises(ValueError, match="empty, or does not exist"):
        hand_out(["01"], tmp_path / "out")
    for wrong in (["99"], ["lab-99"], ["ch99-x"], []):
        with pytest.raises(ValueError, match="valid: a chapter's number"):
            hand_out(wrong, tmp_path / "other")
    assert not (tmp_path / "other").exists()


BAD = {
    "syntax": ("def param_count(:\n", "SyntaxError"),
    "loop": ("while True: pass\n", "ends within 4 s"),
    "flood": ("import os\nwhile True: os.write(1, b'x' * 100000)\n", "Your code loads: Line 2"),
    "print": ("def param_count(*a, **k):\n    while True: print('x' * 1000)\n", "ends within 4 s"),
    "exit": ("import os\nos._exit(0)\n", "runs to its end"),
    "quit": ("raise SystemExit(0)\n", "Your code loads"),
    "empty": ("", "defines no param_count"),
    "peek": ("from pdtlib.exercises import get\n", "holds the answer"),
}


ENDLESS = [name for name, (_, reason) in BAD.items() if "ends within" in reason]


def test_bad_submissions_get_a_reason_and_good_ones_their_points(tmp_path: Path) -> None:
    """Syntax errors, endless loops, floods, early exits, missing, huge and binary files, links, pickles."""
    task = tasks([COUNT])[0]
    for name, (source, _) in BAD.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / task.file).write_text(source, encoding="utf-8")
    for name in ("missing", "folder", "huge", "binary", "link", "good", "starter"):
        (tmp_path / name).mkdir()
    (tmp_path / "missing" / "ch01_param_count.pkl").write_bytes(b"\x80\x04cos\nsystem\n.")
    (tmp_path / "folder" / task.file).mkdir()
    (tmp_path / "huge" / task.file).write_text("#" * (MOST_SOURCE_BYTES + 1), encoding="utf-8")
    (tmp_path / "binary" / task.file).write_bytes(b"\xff\xfe\x00")
    (tmp_path / "link" / task.file).symlink_to(tmp_path / "good" / task.file)
    (tmp_path / "good" / task.file).write_text(solution(task), encoding="utf-8")
    (tmp_path / "starter" / task.file).write_text(starter(task), encoding="utf-8")
    found = {}
    for name in students(tmp_path):
        limit_s = 4.0 if name in ENDLESS else None
        found[name] = grade_folder(tmp_path / name, [task], seed=7, limit_s=limit_s)
    reasons = {name: each["tasks"][0]["reason"] for name, each in found.items()}
    assert reasons.pop("good") == ""
    assert found.pop("good")["score"] == 1.0
    assert {name for name, each in found.items() if each["score"] > 0} == set()
    for name, (_, reason) in BAD.items():
        assert reason in reasons[name], name
    assert "missing" in reasons["missing"]
    assert "missing" in reasons["folder"]
    assert "at most 1,000,000" in reasons["huge"]
    assert "cannot be read" in reasons["binary"]
    assert "is a link" in reasons["link"]
    assert reasons["starter"]


def test_a_lab_is_graded_by_running_it(tmp_path: Path) -> None:
    """Lab 01: the solution gets its point, the starter nothing, a wrong prediction a part and the reason."""
    task = tasks(["lab-01"])[0]
    answers = {
        "solution": solution(task),
        "starter": starter(task),
        "wrong": solution(task).replace("4 * table", "5 * table"),
        "forger": starter(task).replace(TODO, "return ()") + "\ndef show(report): print('all is right')\n",
    }
    found = {}
    for name, source in answers.items():
        (tmp_path / name).write_text(source, encoding="utf-8")
        found[name] = grade_file(task, tmp_path / name, seed=0)
    assert (found["solution"].score, found["solution"].reason) == (1.0, "")
    assert found["starter"].score == 0
    assert "NotImplementedError" in found["starter"].reason
    assert 0 < found["wrong"].score < 1
    assert "lines are as expected" in found["wrong"].reason
    assert found["forger"].score < found["wrong"].score


def test_a_lab_that_never_ends_is_stopped(tmp_path: Path) -> None:
    lab = labs.find("01")
    ran = _run_lab(lab, "import time\nprint('here', flush=True)\ntime.sleep(600)\n", 8.0)
    assert (ran.ended, ran.reason, ran.printed) == (False, "stopped after 8 s", "here\n")


def test_numbers_do_not_count_as_words() -> None:
    assert _labels("a 1,024 is 3.5e-6\n\n 7 \n") == _labels("a  5 is < 1e-05\n")
    assert _labels("a 1 NOT as predicted") != _labels("a 1")


def test_results_become_one_table(tmp_path: Path) -> None:
    for name, score in (("zoe", 1.0), ("ada", 0.25)):
        graded = {"id": COUNT, "score": score, "points": 2.0, "reason": "" if score == 1 else "too few, so"}
        result = {"student": name, "seed": 1, "score": 2 * score, "points": 2.0, "tasks": [graded]}
        (tmp_path / f"{name}.json").write_text(json.dumps(result), encoding="utf-8")
    (tmp_path / "cut.json").write_text('{"student": "cut", "sco', encoding="utf-8")
    (tmp_path / "other.json").write_text("[1, 2]", encoding="utf-8")
    rows = collect(tmp_path)
    assert [(row["student"], row["score"]) for row in rows] == [
        ("ada", 0.5),
        ("cut", 0.0),
        ("other", 0.0),
        ("zoe", 2.0),
    ]
    read = list(csv.DictReader(io.StringIO(to_csv(rows))))
    assert read[0] == {
        "student": "ada",
        "score": "0.5",
        "points": "2",
        COUNT: "0.25",
        "reasons": f"{COUNT}: too few, so",
    }
    assert "cut.json cannot be read" in read[1]["reasons"]
    with pytest.raises(ValueError, match="pdt assign grade"):
        collect(tmp_path / "nothing")


def test_pdt_assign(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Hand out, grade, collect from the command line; wrong calls end with 2."""

    def run(words: list[str], code: int = 0) -> None:
        with pytest.raises(SystemExit) as end:
            app.main(["assign", *words])
        assert end.value.code == code, words

    paths = {name: str(tmp_path / name) for name in ("work", "handed", "results", "table.csv")}
    run(["make", COUNT, "--out", paths["work"]])
    (tmp_path / "handed" / "ada").mkdir(parents=True)
    (tmp_path / "handed/ada/ch01_param_count.py").write_text(solution(tasks([COUNT])[0]), encoding="utf-8")
    run(["grade", paths["work"], paths["handed"], "--out", paths["results"], "--seed", "3"])
    run(["collect", paths["results"], "--csv", paths["table.csv"]])
    capsys.readouterr()
    assert (tmp_path / "table.csv").read_text().splitlines()[1] == "ada,1,1,1,"
    run(["collect", paths["results"], "--json"])
    assert json.loads(capsys.readouterr().out)[0]["scores"] == {COUNT: 1.0}
    for wrong in (
        ["make", "99", "--out", paths["work"]],
        ["grade", paths["work"], str(tmp_path / "none"), "--out", paths["results"]],
        ["grade", paths["handed"], paths["handed"], "--out", paths["results"]],
        ["grade", paths["work"], paths["handed"], "--out", paths["results"], "--share", "2/2"],
        ["collect", str(tmp_path / "none")],
    ):
        run(wrong, 2)
        assert "valid" in capsys.readouterr().err
    for file, code in (("handed/ada/ch01_param_count.py", 0), ("work/ch01_param_count.py", 1)):
        run(["check", COUNT, str(tmp_path / file)], code)
