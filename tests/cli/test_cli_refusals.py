"""Every command that refuses says why on stderr, and as ``problems`` on stdout where JSON was asked for."""

import json

import pytest

from pdtlib.cli.app import main

JOB = """
[model]
preset = "gpt2"
[hardware]
cluster = "dgx-a100"
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "cpu.toml").write_text('[model]\npreset = "gpt2"\n')
    (tmp_path / "bad.toml").write_text('[model]\npreset = "gpt9"\n')
    (tmp_path / "latin.json").write_bytes(b'{"a": "\xe9"}')
    (tmp_path / "folder").mkdir()


@pytest.mark.parametrize(
    ("words", "field", "told"),
    [
        ("predict bad.toml", "model.preset", "'gpt9' is not a known preset"),
        ("predict none.toml", "", "cannot read none.toml: No such file"),
        ("predict folder", "", "cannot read folder: Is a directory"),
        ("predict", "", "give a JOB or --jsonl FILE"),
        ("predict job.toml --software fast", "--software", "'fast' is not known"),
        ("plan job.toml --gpus 0", "--gpus", "at least 1, not 0"),
        ("plan job.toml --gpus -8", "--gpus", "at least 1, not -8"),
        ("plan job.toml --top 0", "--top", "at least 1, not 0"),
        ("plan job.toml --tokens -1", "--tokens", "at least 0, not -1"),
        ("plan job.toml --price inf", "--price", "must be finite"),
        ("plan cpu.toml", "hardware.gpu", "pdt calibrate"),
        ("plan none.toml", "", "cannot read none.toml: No such file"),
        ("export job.toml --to horovod --out x", "--to", "'horovod' is not known"),
        ("export none.toml --to megatron --out x", "", "cannot read none.toml"),
        ("lint none.json --for deepspeed", "", "cannot read none.json: No such file"),
        ("lint latin.json --for deepspeed", "", "latin.json is not UTF-8 text"),
        ("lint job.toml --for horovod", "--for", "'horovod' is not known"),
        ("compare folder", "", "holds no finished run"),
        ("dryrun none.toml", "", "cannot read none.toml"),
        ("dryrun cpu.toml --rank 7", "--rank", "the job has ranks 0 to 0"),
        ("dryrun cpu.toml --rank x", "--rank", "valid integer"),
        ("predict cpu.toml --nope", "", "--nope"),
        ("predict cpu.toml extra", "", "unexpected extra argument"),
        ("predict --jsonl none.jsonl", "", "cannot read none.jsonl"),
        ("predict --jsonl latin.json", "", "latin.json is not UTF-8 text"),
        ("plan job.toml --sizes 8", "--sizes", "only counts with --scaling (valid: strong, weak)"),
    ],
)
def test_refusals(here, capsys, words, field, told):
    with pytest.raises(SystemExit) as stop:
        main([*words.split(), "--json"])
    out, err = capsys.readouterr()
    assert stop.value.code == 2
    assert told in err
    assert "None" not in err
    (problem,) = json.loads(out)["problems"]
    assert problem["field"] == field
    assert told.partition(" (valid")[0] in problem["message"]


def test_a_folder_that_cannot_be_written(here, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["export", "job.toml", "--to", "megatron", "--out", "latin.json", "--json"])
    out, err = capsys.readouterr()
    assert stop.value.code == 1
    assert "cannot write latin.json: File exists" in err
    assert [row["field"] for row in json.loads(out)["problems"]] == ["--out"]


@pytest.mark.parametrize("number", ["1e400", "-1e400", "NaN"])
@pytest.mark.parametrize("key", ["train_batch_size", "train_micro_batch_size_per_gpu"])
def test_lint_wants_finite_batches(here, tmp_path, capsys, key, number):
    (tmp_path / "deepspeed.json").write_text(f'{{"{key}": {number}}}')
    with pytest.raises(SystemExit) as stop:
        main(["lint", "deepspeed.json", "--for", "deepspeed", "--json"])
    assert stop.value.code == 1
    verdicts = {row["key"]: row["verdict"] for row in json.loads(capsys.readouterr().out)}
    assert verdicts[key] == "rejected"
