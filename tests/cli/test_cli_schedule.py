"""``pdt schedule``: its JSON, its files, and how it refuses."""

import json

import pytest

from pdtlib.cli.app import main
from pdtlib.plan.schedule import NAMES, build, check, from_csv, from_text
from pdtlib.plan.schedule.zero_bubble_table import PUBLISHED_RATES


@pytest.fixture
def pdt(capsys):
    def run(*words):
        with pytest.raises(SystemExit) as stop:
            main(["schedule", *map(str, words)])
        out, err = capsys.readouterr()
        return stop.value.code or 0, out, err

    return run


@pytest.fixture
def answer(pdt):
    def run(*words):
        code, out, err = pdt(*words, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)

    return run


def test_keys(answer):
    found = answer("1f1b", "--stages", 4, "--microbatches", 8, "--tf", 1, "--tb", 2)
    assert found["actions"][0][:6] == ["F0", "F1", "F2", "F3", "B0", "F4"]
    assert found["makespan"] == 33
    assert found["bubble_fraction"] == pytest.approx(3 / 11)
    assert found["bubble_rate"] == pytest.approx(3 / 11)
    assert found["peak_in_flight"] == [4, 3, 2, 1]
    assert found["problems"] == []


@pytest.mark.parametrize("name", NAMES)
def test_every_name(answer, name):
    found = answer(name, "--stages", 4, "--microbatches", 8)
    assert len(found["actions"]) == 4
    assert max(found["peak_in_flight"]) <= 8
    assert 0 <= found["bubble_rate"] <= found["bubble_fraction"] + 1e-12


def test_actions_of_later_chunks(answer):
    found = answer("interleaved", "--stages", 2, "--microbatches", 2, "--chunks", 2)
    assert found["actions"][1] == ["F0", "F1", "F0@1", "B0@1", "F1@1", "B1@1", "B0", "B1"]


def test_tb_alone_is_the_whole_backward_where_it_is_not_split(answer):
    assert answer("gpipe", "--stages", 8, "--microbatches", 32)["makespan"] == 78
    assert answer("zb-h1", "--stages", 1, "--microbatches", 2, "--tb", 3)["costs"]["tw"] == 3


@pytest.mark.parametrize("row", PUBLISHED_RATES, ids=lambda row: f"{row.model}-m{row.microbatches}")
@pytest.mark.parametrize(("printed", "name"), [("1F1B", "1f1b"), ("ZB-H1", "zb-h1")])
def test_published_rates(answer, row, printed, name):
    costs = row.costs
    times = {
        "--tf": costs.forward,
        "--tb": costs.backward_input,
        "--tw": costs.backward_weight,
        "--tcomm": costs.transfer,
    }
    words = [word for pair in times.items() for word in pair]
    found = answer(name, "--stages", row.stages, "--microbatches", row.microbatches, *words)
    assert round(found["bubble_rate"], 4) == row.rates[printed]


def test_unequal_stages(answer):
    found = answer("1f1b", "--stages", 2, "--microbatches", 2, "--tf", "1,3", "--tb", "2,1")
    # stage 1: F0 1-4, B0 4-5, F1 5-8, B1 8-9; stage 0 ends with B1 at 11
    assert found["makespan"] == 11
    assert found["costs"]["tf"] == [1, 3]


def test_text_and_csv_come_back(pdt, tmp_path, answer):
    for form, read, name in [("text", from_text, "t.txt"), ("csv", from_csv, "t.csv")]:
        code, out, _ = pdt("zb-v", "--stages", 3, "--microbatches", 6, "--format", form)
        assert code == 0
        assert read(out) == build("zb-v", stages=3, microbatches=6)
        (tmp_path / name).write_text(out, encoding="utf-8")
        assert answer("--file", tmp_path / name)["bubble_rate"] == 0


def test_messages(answer):
    found = answer("1f1b", "--stages", 2, "--microbatches", 1, "--messages")
    assert found["actions"] == [["F0", "SF0", "RB0", "B0"], ["RF0", "F0", "B0", "SB0"]]


def test_made_to_measure_fills_its_cap(answer):
    found = answer("zb-auto", "--stages", 4, "--microbatches", 12, "--memory-cap", 5)
    assert max(found["peak_in_flight"]) == 5


def test_the_picture(pdt):
    code, out, _ = pdt("1f1b", "--stages", 2, "--microbatches", 2)
    assert code == 0
    assert out.startswith("stage 0  F0 F1 .. B0 .. B1\nstage 1  .. F0 B0 F1 B1 ..\n")
    assert "33.3 %" in out


@pytest.mark.parametrize(
    ("words", "field", "message"),
    [
        (["1f2b"], "schedule", "valid: naive, gpipe, 1f1b"),
        ([], "name", "give a name or --file"),
        (["1f1b", "--file", "x"], "name", "give a name or --file"),
        (["1f1b", "--stages", "0"], "stages", "stages=0; valid: 1 or more"),
        (["1f1b", "--microbatches", "-1"], "microbatches", "microbatches=-1"),
        (["zb-v", "--chunks", "3"], "chunks", "zb-v has 2 a stage"),
        (["dualpipe", "--stages", "5"], "stages", "valid: even numbers"),
        (["1f1b", "--tf", "-1"], "tf", "valid: 0 or more"),
        (["1f1b", "--tf", "nan"], "tf", "valid: 0 or more"),
        (["1f1b", "--tf", "fast"], "tf", "a number, or one for each stage"),
        (["1f1b", "--tf", "1,2,3"], "tf", "3 times"),
        (["1f1b", "--tf", "0", "--tb", "0"], "tf", "some action must take time"),
        (["1f1b", "--tf", "1e308", "--tb", "1e308"], "tf", "more than a number can be"),
        (["1f1b", "--tpair", "1"], "tpair", "no two actions of 1f1b overlap; valid: dualpipe"),
        (["zb-h1", "--kept", "0.5"], "kept", "only counts under --memory-cap"),
        (["zb-h1", "--kept", "nan", "--memory-cap", "4"], "kept", "valid: 0 to 1"),
        (["1f1b", "--memory-cap", "nan"], "memory_cap", "valid: 0 or more"),
        (["1f1b", "--microbatches", "1000000000"], "microbatches", "at most 1,000,000"),
        (["1f1b", "--format", "pdf"], "format", "valid: table, text, csv, json"),
        (["--file", "no/such/file"], "", "no/such/file"),
    ],
)
def test_refusals(pdt, words, field, message):
    code, out, err = pdt(*words, *([] if "--format" in words else ["--json"]))
    assert code == 2
    assert message in err
    if "--format" not in words:
        problems = json.loads(out)["problems"]
        assert [problem["field"] for problem in problems] == [field]
        assert message in problems[0]["message"]


def test_an_edited_table_is_checked(pdt, tmp_path):
    text = "mine stages=2 microbatches=2 chunks=1 layout=loop\nF0 B0 F1 B1\nF0 F1 B0 B1\n"
    (tmp_path / "mine.txt").write_text(text, encoding="utf-8")
    code, out, err = pdt("--file", tmp_path / "mine.txt", "--json")
    assert code == 2
    assert json.loads(out)["problems"][0]["cell"] == {"stage": 0, "index": 1, "rule": "deadlock"}
    assert "stage 0   F0  >B0<  F1   B1" in err
    with pytest.raises(ValueError, match="deadlock"):
        check(from_text(text))


def test_a_memory_cap_is_checked(pdt):
    code, _, err = pdt("gpipe", "--memory-cap", 4)
    assert code == 2
    assert "F4 makes this stage hold 5 activations; the cap is 4" in err
