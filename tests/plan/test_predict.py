"""What ``pdt predict`` prints, for readers and for machines."""

import json
import subprocess
import sys
import time

import pytest

from pdtlib.cli import app
from pdtlib.plan.job import from_dict
from pdtlib.plan.predict import predict

JOB = {
    "model": {"preset": "llama3-8b"},
    "train": {"global_batch": 64, "zero_stage": 1},
    "parallel": {"dp": 4, "tp": 2, "pp": 2},
}


def pdt(capsys, *words):
    """Run pdt; (exit code, stdout, stderr)."""
    with pytest.raises(SystemExit) as caught:
        app.main([str(word) for word in words])
    out = capsys.readouterr()
    return caught.value.code or 0, out.out, out.err


@pytest.fixture
def job_file(tmp_path):
    path = tmp_path / "job.json"
    path.write_text(json.dumps(JOB))
    return path


def test_keys_of_the_contract():
    result = predict(JOB)
    assert result["problems"] == []
    assert set(result["params"]) == {"total", "active", "by_part"}
    assert {"world_size", "gradient_accumulation", "stages"} <= set(result["layout"])
    assert result["bubble_fraction"] == pytest.approx(1 / 17)
    assert "time" not in result  # no rates are known of a CPU
    assert {"layers", "params"} <= set(result["layout"]["stages"][0])
    parts = {"params", "grads", "optimizer", "activations", "logits", "buffers", "total"}
    for stage in result["memory"]["stages"]:
        assert set(stage) == parts
        assert stage["total"] == sum(stage[part] for part in parts - {"total"})
    assert result["memory"]["max_total"] == max(stage["total"] for stage in result["memory"]["stages"])
    assert set(result["flops"]) == {"model_per_step", "hardware_per_step", "forward_per_token"}
    keys = {"axis", "collective", "phase", "count", "message_bytes", "sent_bytes_per_rank"}
    assert all(set(row) == keys for row in result["comm"])


def test_a_dict_and_a_job_give_the_same():
    assert predict(JOB) == predict(from_dict(JOB))


def test_a_bad_job_gives_its_problems_alone():
    result = predict({"model": {"preset": "llama3-8b"}, "parallel": {"tp": 3}, "train": {"zero": 1}})
    assert list(result) == ["problems"]
    assert {problem["field"] for problem in result["problems"]} == {"parallel.tp", "train.zero"}
    json.dumps(result)


def test_json_output(capsys, job_file):
    code, out, err = pdt(capsys, "predict", job_file, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == json.loads(json.dumps(predict(JOB)))


def test_table_output(capsys, job_file):
    code, out, err = pdt(capsys, "predict", job_file)
    assert (code, err) == (0, "")
    assert "8.03 B parameters (8,030,261,248)" in out
    assert "16 ranks, 2 stage(s), 16 micro-batch(es) a step" in out
    assert "activations" in out
    assert "reduce_scatter" in out


def test_a_bad_job_exits_2_with_its_problems_on_both_channels(capsys, tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text('[model]\npreset = "llama3-8b"\n[parallel]\ntp = 3\n[train]\nglobal_bach = 4\n')
    code, out, err = pdt(capsys, "predict", path, "--json")
    assert code == 2
    assert {problem["field"] for problem in json.loads(out)["problems"]} == {
        "parallel.tp",
        "train.global_bach",
    }
    assert "parallel.tp: 32 heads cannot be split over 3 ranks (valid: 1, 2, 4, 8, 16, 32)" in err
    assert "did you mean 'global_batch'?" in err
    code, out, _ = pdt(capsys, "predict", path)
    assert (code, out) == (2, "")


def test_a_missing_file_exits_2(capsys, tmp_path):
    code, out, err = pdt(capsys, "predict", tmp_path / "none.toml", "--json")
    assert code == 2
    assert "No such file" in err
    assert "No such file" in json.loads(out)["problems"][0]["message"]


def test_a_job_a_line_gives_a_result_a_line(capsys, tmp_path):
    lines = [json.dumps(JOB), "", "{", json.dumps({**JOB, "parallel": {"tp": 5}})]
    path = tmp_path / "jobs.jsonl"
    path.write_text("\n".join(lines))
    code, out, _ = pdt(capsys, "predict", "--jsonl", path)
    results = [json.loads(line) for line in out.splitlines()]
    assert code == 2
    assert results[0] == json.loads(json.dumps(predict(JOB)))
    assert "not valid JSON" in results[1]["problems"][0]["message"]
    assert results[2]["problems"][0]["field"] == "parallel.tp"
    path.write_text(lines[0] + "\n")
    assert pdt(capsys, "predict", "--jsonl", path)[0] == 0


def test_lines_that_are_no_job(capsys, tmp_path):
    path = tmp_path / "jobs.jsonl"
    named = {"model": {**JOB["model"], "name": "a\u2028b"}}
    path.write_text("[]\n" + json.dumps({**JOB, **named}, ensure_ascii=False), encoding="utf-8")
    code, out, _ = pdt(capsys, "predict", "--jsonl", path)
    first, second = (json.loads(line) for line in out.split("\n")[:2])
    assert code == 2
    assert "a list" in first["problems"][0]["message"]
    assert second["problems"] == []
    path.write_bytes(b"\xff\xfe")
    code, out, err = pdt(capsys, "predict", "--jsonl", path)
    assert (code, out) == (2, "")
    assert "is not UTF-8 text" in err


def test_a_wrong_call_exits_2(capsys, job_file):
    for words in (["predict"], ["predict", job_file, "--jsonl", job_file], ["predct"], ["predict", "--no"]):
        code, out, err = pdt(capsys, *words)
        assert (code, out) == (2, "")
        assert err
    assert "did you mean 'predict'" in pdt(capsys, "predct")[2]


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_help_lists_every_command_without_importing_any(words):
    program = (
        "import sys; from pdtlib.cli.app import main; main(sys.argv[1:]); "
        "assert not {'typer', 'rich', 'torch', 'numpy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in app.COMMANDS)


@pytest.mark.parametrize("name", app.COMMANDS)
def test_every_command_explains_itself(capsys, name):
    code, out, err = pdt(capsys, name, "--help")
    assert (code, err) == (0, "")
    assert f"pdt {name}" in out


def test_version(capsys):
    app.main(["--version"])
    assert capsys.readouterr().out.startswith("pdt 0.")


@pytest.mark.parametrize("name", ["llama3-405b", "mixtral-8x7b", "gpt3-175b"])
def test_a_prediction_takes_milliseconds(name):
    job = {"model": {"preset": name, "vocab": 128256}, "parallel": {"tp": 8, "pp": 8, "dp": 64}}
    predict(job)
    job["train"] = {"micro_batch": 2}  # not in any cache
    start = time.process_time()
    predict(job)
    assert time.process_time() - start < 0.1


def test_times_and_rates_on_hardware_with_published_rates():
    job = {**JOB, "hardware": {"cluster": "dgx-h100"}}
    result = predict(job)
    time, rate = result["time"], result["throughput"]
    assert set(time) == {"step_s", "compute_s", "exposed_comm_s", "bubble_s"}
    assert set(time["exposed_comm_s"]) == {"dp", "tp", "pp", "cp", "ep"}
    parts = time["compute_s"] + time["bubble_s"] + sum(time["exposed_comm_s"].values())
    assert time["step_s"] == pytest.approx(parts)
    assert rate["tokens_per_s"] == pytest.approx(64 * 8192 / time["step_s"])
    assert rate["tokens_per_s_per_gpu"] * 16 == pytest.approx(rate["tokens_per_s"])
    assert rate["tflops_per_gpu"] == pytest.approx(rate["mfu"] * 989.4)
    assert 0.2 < rate["mfu"] <= rate["hfu"] < 0.8
    assert {row["axis"] for row in result["comm"]} == {"dp", "tp", "pp"}


def test_another_stack_has_other_times():
    job = {**JOB, "hardware": {"cluster": "dgx-a100"}}
    slower = predict(job, software="megatron-2021")["time"]["step_s"]
    assert slower > predict(job)["time"]["step_s"]


def test_an_unknown_stack_exits_2(capsys, job_file):
    code, _, err = pdt(capsys, "predict", job_file, "--software", "megatron")
    assert code == 2
    assert "megatron-core" in err


def test_memory_that_is_not_there_is_pointed_out(capsys, tmp_path):
    tables = {**JOB, "hardware": {"cluster": "dgx-h100"}}
    assert predict(tables)["warnings"] == []
    tables["parallel"] = {"dp": 4}
    (warning,) = predict(tables)["warnings"]
    assert "do not fit into the 80.0 GB of H100-SXM5" in warning
    path = tmp_path / "job.json"
    path.write_text(json.dumps(tables))
    assert "warning:" in pdt(capsys, "predict", path)[1]


def test_the_frameworks_own_memory_is_named_and_in_no_stage():
    """Context, NCCL and allocator are no tensors: beside the sum, and a reason to warn."""
    tables = {"model": {"preset": "gpt2"}}
    assert predict(tables)["memory"]["framework_overhead"] == 0
    on_gpu = predict({**tables, "hardware": {"gpu": "A100-SXM4-40"}})["memory"]
    assert on_gpu["framework_overhead"] > 0
    assert on_gpu["max_total"] == max(stage["total"] for stage in on_gpu["stages"])
    full = {"model": {"preset": "gpt2-xl", "layers": 46}, "hardware": {"gpu": "A100-SXM4-40"}}
    for batch in range(1, 40):
        result = predict({**full, "train": {"micro_batch": batch}})
        room = 40e9 - result["memory"]["max_total"]
        if 0 < room < result["memory"]["framework_overhead"]:
            assert any("framework" in warning for warning in result["warnings"])
            return
    pytest.fail("no batch comes near the GPU's memory")
