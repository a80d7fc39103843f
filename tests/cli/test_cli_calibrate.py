"""``pdt calibrate``: this machine measured, a small job's prediction beside its run."""

import json
import math
import os
import platform
import subprocess
import sys
import tomllib

import pytest

from pdtlib.cli.app import main
from pdtlib.plan.job import load

JOB = """
[model]
layers = 2
hidden = 64
heads = 4
vocab = 256
seq = 64
activation = "swiglu"
[train]
global_batch = 4
precision = "fp32"
steps = 6
[parallel]
dp = 2
[hardware]
cluster = "here.toml"
"""


def pdt(*words, cwd):
    command = [sys.executable, "-c", "from pdtlib.cli.app import main; main()", *map(str, words)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calibrated")
    pdt("calibrate", "--short", "--ranks", 2, "--device", "cpu", "--out", "here.toml", cwd=folder)
    (folder / "job.toml").write_text(JOB, encoding="utf-8")
    return folder


def numbers(value):
    if isinstance(value, dict):
        return [number for item in value.values() for number in numbers(item)]
    if isinstance(value, list):
        return [number for item in value for number in numbers(item)]
    return [value] if isinstance(value, int | float) else []


def test_the_file_holds_what_was_measured(calibrated):
    text = (calibrated / "here.toml").read_text(encoding="utf-8")
    assert text.startswith("# What this machine reaches")
    table = tomllib.loads(text)["hardware"]
    measured = table["measured"]
    assert table["gpus_per_node"] == 2
    assert all(math.isfinite(number) and number >= 0 for number in numbers(table))
    assert {(row["ranks"], row["precision"]) for row in measured["compute"]} == {
        (ranks, precision) for ranks in (1, 2) for precision in ("fp32", "bf16")
    }
    assert all(rate > 1e6 for row in measured["compute"] for _, rate in row["matmul"])
    assert {row["collective"] for row in measured["collectives"]} >= {"all_reduce", "all_gather"}
    assert {row["ranks"] for row in measured["collectives"]} == {2}


def test_the_file_says_nothing_private(calibrated):
    text = (calibrated / "here.toml").read_text(encoding="utf-8")
    private = [platform.node(), str(calibrated), os.environ.get("USER", ""), os.path.expanduser("~")]
    assert not [word for word in private if len(word) > 3 and word in text]


def test_a_run_beside_its_prediction(calibrated):
    """The step takes what it takes, which is printed; its prediction is made of the file's numbers."""
    predicted = json.loads(pdt("predict", "job.toml", "--json", cwd=calibrated))["time"]
    assert load(calibrated / "job.toml").hardware.measured is not None
    pdt("run", "job.toml", "--out", "run", "--device", "cpu", cwd=calibrated)
    rows = {row["quantity"]: row for row in json.loads(pdt("compare", "run", "--json", cwd=calibrated))}
    step = rows["time.step_s"]
    print(f"step: predicted {step['predicted']:.4g} s, measured {step['measured']:.4g} s")
    assert step["predicted"] == predicted["step_s"]
    assert 0 < step["measured"] < math.inf
    slower = (calibrated / "here.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(slower)["hardware"]["measured"]
    for row in tables["collectives"]:
        slower = slower.replace(f"start_s = {row['start_s']!r}", f"start_s = {row['start_s'] + 1.0!r}")
    (calibrated / "here.toml").write_text(slower, encoding="utf-8")
    later = json.loads(pdt("predict", "job.toml", "--json", cwd=calibrated))["time"]
    assert later["step_s"] - predicted["step_s"] > 1.0 - 1e-9


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--out", "here.txt"], 2, "must end in .toml"),
        (["--ranks", "0"], 2, "ranks=0"),
        (["--device", "cpu", "--ranks", "1000000"], 2, "valid: 1 to 64"),
        (["--device", "tpu"], 2, "device='tpu'"),
        (["--device", "cpu", "--ranks", "1", "--short", "--out", "no/where.toml"], 1, "cannot write"),
    ],
)
def test_refusals(words, code, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["calibrate", "--json", *words])
    out, err = capsys.readouterr()
    assert stop.value.code == code
    assert message in err
    (problem,) = json.loads(out)["problems"]
    assert message in problem["message"]
