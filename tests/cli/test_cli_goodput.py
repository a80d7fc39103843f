"""``pdt goodput``: its JSON, a job as input, and how it refuses."""

import json

import pytest

from pdtlib.cli.app import main


@pytest.fixture
def pdt(capsys):
    def run(*words):
        with pytest.raises(SystemExit) as stop:
            main(["goodput", *map(str, words)])
        out, err = capsys.readouterr()
        return stop.value.code or 0, out, err

    return run


@pytest.fixture
def job(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(
        '[model]\npreset = "llama3-70b"\n[parallel]\ndp = 32\ntp = 8\npp = 8\n'
        "[train]\nglobal_batch = 256\n[hardware]\ncluster = 'dgx-a100'\n",
        encoding="utf-8",
    )
    return path


def test_keys_and_the_books_numbers(pdt):
    code, out, err = pdt("--gpus", 2048, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["mtbf_h"] == pytest.approx(24.7, abs=0.05)
    assert found["checkpoint_interval_s"] / 60 == pytest.approx(38.5, abs=0.05)
    assert found["overhead_fraction"] == pytest.approx(0.026, abs=0.0005)
    found = json.loads(pdt("--gpus", 16384, "--json")[1])
    assert found["mtbf_h"] == pytest.approx(3.09, abs=0.005)


def test_a_job_brings_its_gpus_and_its_checkpoint(pdt, job):
    found = json.loads(pdt(job, "--save-gb-s", 49.0, "--json")[1])
    assert found["gpus"] == 2048
    assert found["checkpoint_bytes"] == 14 * 70_553_706_496
    assert found["save_s"] == pytest.approx(14 * 70_553_706_496 / 49e9)


def test_restarts_and_a_given_interval_cost_more(pdt):
    best = json.loads(pdt("--gpus", 1024, "--restart-s", 600, "--json")[1])
    other = json.loads(pdt("--gpus", 1024, "--restart-s", 600, "--interval-s", 600, "--json")[1])
    assert other["checkpoint_interval_s"] == 600
    assert other["overhead_fraction"] > best["overhead_fraction"]
    assert other["goodput"] < best["goodput"]


def test_for_people(pdt):
    code, out, _ = pdt("--gpus", 2048)
    assert code == 0
    assert "38.5 min" in out
    assert "2.6 %" in out


@pytest.mark.parametrize(
    ("words", "field", "message"),
    [
        ([], "gpus", "give a job or --gpus"),
        (["--gpus", "0"], "gpus", "gpus=0; valid: 1 or more"),
        (["--gpus", "8", "--fleet", "mars"], "fleet", "valid: llama3, rsc1"),
        (["--gpus", "8", "--save-s", "0"], "save_s", "valid: above 0"),
        (["--gpus", "8", "--restart-s", "-1"], "restart_s", "valid: 0 or more"),
        (["--gpus", "8", "--restart-s", "inf"], "restart_s", "valid: 0 or more, in seconds"),
        (["--gpus", "8", "--save-s", "5", "--save-gb-s", "5"], "save_gb_s", "one of the two"),
        (["--gpus", "8", "--save-gb-s", "5"], "save_gb_s", "only a job has a checkpoint's size"),
        (["--gpus", "8", "--gpu-mtbf-h", "0"], "gpu_mtbf_h", "valid: above 0"),
        (["--gpus", "8", "--repair-h", "inf"], "repair_h", "in repair at once"),
        (["--gpus", "100000000000"], "repair_h", "in repair at once"),
    ],
)
def test_refusals(pdt, words, field, message):
    code, out, err = pdt(*words, "--json")
    assert code == 2
    assert message in err
    assert json.loads(out)["problems"][0]["field"] == field


def test_a_bad_job_names_its_fields(pdt, job):
    job.write_text(job.read_text(encoding="utf-8").replace("tp = 8", "tp = 7"), encoding="utf-8")
    code, out, err = pdt(job, "--json")
    assert code == 2
    assert "parallel.tp" in err
    assert "parallel.tp" in [problem["field"] for problem in json.loads(out)["problems"]]
