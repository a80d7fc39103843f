"""What cannot work is refused with one clear error, before anything is started, made or overwritten."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from launching import JOB, run, write_job

from pdtlib.engine.training import checks
from pdtlib.engine.training.checks import check
from pdtlib.engine.training.failures import Refused
from pdtlib.engine.training.options import Options, parse
from pdtlib.plan.job import load, loads, to_json
from pdtlib.plan.memory import stage_memory
from pdtlib.plan.params import count


def problems(tmp_path: Path, *, world_size: int | None = None, text: str = JOB, **options: object) -> str:
    job = options.pop("job", None) or write_job(tmp_path, text)
    wanted = Options(**{"job": job, "out": tmp_path / "out", **options})
    before = snapshot(tmp_path)
    with pytest.raises(Refused) as refused:
        check(wanted, world_size=world_size, local_world_size=world_size or 1)
    assert snapshot(tmp_path) == before
    assert len(refused.value.problems) == len(str(refused.value).splitlines())
    return str(refused.value)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("train.zero_sage=1", "train.zero_sage: is not a field; did you mean 'zero_stage'?"),
        ("train.zero_stage=4", "train.zero_stage: must be between 0 and 3, not 4"),
        ("train.global_batch=9", "train.global_batch: 9 is not a multiple of micro_batch x dp = 1 x 2 = 2"),
        ("model.heads=\"three\"", "model.heads: must be a whole number"),
        ("parallel.tp=3", "parallel.tp"),
        ("parallel.pp=3", "parallel.pp: 2 layers cannot fill 3 stages (valid: 1, 2)"),
        ("hardware.gpu=H100-SXM5;train.precision=fp8", "the engine has no fp8 matrix products"),
        ("model.vocab=100", "model.vocab: 100: bytes need a vocabulary of at least 256"),
        ("train.zero_stage", "--set train.zero_stage: write it as section.field=value"),
        ("hardware.n_gpus=3", "8 is not a multiple of micro_batch x dp = 1 x 3 = 3 (valid: 6, 9)"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named(tmp_path: Path, change: str, told: str) -> None:
    assert told in problems(tmp_path, changes=tuple(change.split(";")))


def test_every_reason_is_given_at_once(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    options = {"steps": 0, "data": (tmp_path / "none.txt",), "device": "gpu", "checkpoint_every": -1}
    changes = ("hardware.gpu=H100-SXM5", "train.precision=fp8")
    text = problems(tmp_path, changes=changes, rank_order="mine", compiler="fast", **options)
    for told in (
        "train.precision",
        "--rank-order: 'mine' is not one of its values (valid: article, megatron)",
        "--compiler: 'fast' is not one of its values (valid: none, inductor, aot_eager, eager)",
        "--steps",
        "--out",
        "--device",
        "--checkpoint-every",
        "none.txt: there is no",
    ):
        assert told in text


def test_a_job_that_is_no_job(tmp_path: Path) -> None:
    assert "No such file" in problems(tmp_path, job=tmp_path / "none.toml")
    assert "Is a directory" in problems(tmp_path, job=tmp_path)
    assert "not valid TOML" in problems(tmp_path, text="[model\n")
    assert "model.layers: is required" in problems(tmp_path, text="")


def test_ranks_that_do_not_fit_the_job(tmp_path: Path) -> None:
    told = "parallel: the job's degrees make 2 ranks, but 5 were started (valid: torchrun --nproc-per-node 2"
    assert told in problems(tmp_path, world_size=5)


def test_too_few_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    told = "--device: 2 ranks on this machine need as many GPUs, and it has 1 (valid: cpu)"
    assert told in problems(tmp_path)


def test_more_memory_than_there_is(tmp_path: Path) -> None:
    """Two ranks' states and passes, and the copies of which each writes its half into a checkpoint."""
    text = '[model]\npreset = "llama3-70b"\n[parallel]\ndp = 2\n'
    job = loads(text)
    copies = checks.CHECKPOINT_BYTES * count(job.model).total / 2
    each = (stage_memory(job, 0).total + copies + checks.PROCESS_BYTES) / 1e9
    told = problems(tmp_path, text=text)
    assert f"2 rank(s) of {each:,.1f} GB need {2 * each:,.1f} GB" in told
    assert "GB of memory free" in told


def test_a_directory_in_use_is_not_touched(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    assert "is not empty (it holds thesis.tex) (valid: another directory)" in problems(tmp_path)
    for option in ({"overwrite": True}, {"resume": True}):
        assert "holds no run (no job.json), so nothing in it will be touched" in problems(tmp_path, **option)
    (out / "job.json").write_text(to_json(load(write_job(tmp_path))))
    assert "(valid: another directory, --overwrite, --resume)" in problems(tmp_path)


def test_resuming_another_model_or_batch_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "job.json").write_text(to_json(load(write_job(tmp_path))))
    text = problems(
        tmp_path, resume=True, changes=("model.layers=3", "train.seed=1", "train.global_batch=16")
    )
    for told in ("model: is not what the run began with", "train.global_batch:", "train.seed:"):
        assert told in text
    (out / "job.json").write_text("{")
    assert "is not a job" in problems(tmp_path, resume=True)


def test_no_access_as_the_system_reports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert f"--out: {tmp_path} cannot be written to" in problems(tmp_path)


def test_too_little_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 5, 5_000_000))
    assert "has 5 MB free, and this run writes 4 checkpoint(s)" in problems(tmp_path, checkpoint_every=5)


def test_out_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "is a file" in problems(tmp_path, out=tmp_path / "file" / "out")


def test_the_command_line_says_the_same(tmp_path: Path) -> None:
    job = write_job(tmp_path)
    code, out, err = run("run", job, "--out", tmp_path / "out", "--set", "train.zero_sage=1", "--json")
    assert code == 2
    assert err.startswith("train.zero_sage: is not a field")
    assert err.count("\n") == 1
    assert json.loads(out)["problems"][0]["field"] == "train.zero_sage"
    assert not (tmp_path / "out").exists()


def test_options_survive_the_command_line(tmp_path: Path) -> None:
    wanted = Options(
        job=tmp_path / "a job.toml",
        out=tmp_path / "out dir",
        steps=3,
        data=(tmp_path / "a b.txt", tmp_path / "-c.txt"),
        changes=("train.zero_stage=3", "model.name='a b'"),
        rank_order="megatron",
        compiler="aot_eager",
        checkpoint_every=2,
        overwrite=True,
        device="cpu",
    )
    assert parse(wanted.arguments()) == wanted
