"""Hardware files: what pdt calibrate measured, read beside a job, and times predicted from it."""

import json
import math

import pytest

from pdtlib.plan.comm import sent_bytes
from pdtlib.plan.hardware_file import memory_bytes, peak_flops
from pdtlib.plan.job import (
    JobError,
    from_dict,
    hardware_toml,
    load,
    loads,
    replace,
    to_json,
    to_toml,
    validate,
)
from pdtlib.plan.planner import plan
from pdtlib.plan.predict import predict
from pdtlib.plan.spec import CollectiveRate
from pdtlib.plan.time.collectives import measured_s
from pdtlib.plan.time.constants import system_of
from pdtlib.plan.time.kernels import matmul_s
from pdtlib.plan.time.step import step_time

MODEL = {"layers": 2, "hidden": 128, "heads": 4, "vocab": 256, "seq": 128, "activation": "swiglu"}


def compute(ranks, precision="fp32", speed=1.0):
    return {
        "ranks": ranks,
        "precision": precision,
        "matmul": [[1e5, 2e9 * speed], [1e7, 20e9 * speed], [1e9, 40e9 * speed]],
        "attention_flops_per_s": 10e9 * speed,
        "memory_bytes_per_s": 8e9 * speed,
        "optimizer_bytes_per_s": 6e9 * speed,
        "passes": 2.0,
        "kernel_s": 1e-6 / speed,
    }


def link(collective="all_reduce", ranks=2, start_s=1e-4, bytes_per_s=1e9):
    return {"collective": collective, "ranks": ranks, "start_s": start_s, "bytes_per_s": bytes_per_s}


def hardware(**changes):
    measured = {
        "date": "2026-01-02",
        "host": "4 cores",
        "memory_bytes": 2e9,
        "compute": [compute(1), compute(2, speed=0.5), compute(2, "bf16", 3.0)],
        "collectives": [link(), link(ranks=4)],
        **changes,
    }
    return {"gpu": "cpu", "gpus_per_node": 4, "measured": measured}


def job(train=None, parallel=None, hardware_=None, **model):
    return from_dict(
        {
            "model": {**MODEL, **model},
            "train": {"precision": "fp32", **(train or {})},
            "parallel": parallel or {},
            "hardware": hardware_ or hardware(),
        }
    )


def seconds(chosen):
    return step_time(chosen, system=system_of(chosen)).step_s


def test_a_measured_job_survives_toml_and_json():
    chosen = job(parallel={"dp": 2}, train={"global_batch": 4})
    assert loads(to_toml(chosen)) == chosen
    assert loads(to_json(chosen), "json") == chosen
    assert replace(chosen, {"parallel.dp": 4}).hardware.measured == chosen.hardware.measured


def test_a_file_is_read_beside_the_job(tmp_path):
    """The path is relative to the job file, wherever the reader stands; the job then carries the numbers."""
    chosen = job(parallel={"dp": 2})
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "mine.toml").write_text(hardware_toml(chosen.hardware, name="mine.toml"))
    tables = {"model": MODEL, "train": {"precision": "fp32"}, "parallel": {"dp": 2}}
    for name, folder in (("mine.toml", "files"), ("files/mine.toml", ".")):
        path = tmp_path / folder / "job.json"
        path.write_text(json.dumps({**tables, "hardware": {"cluster": name}}))
        assert load(path) == chosen
    path.write_text(json.dumps({**tables, "hardware": {"cluster": "files/mine.toml", "gpus_per_node": 2}}))
    assert load(path).hardware.gpus_per_node == 2  # the job's own fields come first
    assert loads(to_toml(load(path))) == load(path)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (None, "cannot read"),
        ("[hardware", "not valid TOML"),
        ("x = 1", "no section [hardware]"),
        ("[hardware]\ngpu = 'cpu'\nspeed = 3", "no 'speed'"),
        ("[hardware]\ngpu = 'cpu'\n[job]\n", "no 'job'"),
        ("[hardware]\ngpu = 'cpu'\n[hardware.measured]\ndate = 'x'\n", "is required"),
        ("\x00\x01", "not valid TOML"),
    ],
)
def test_a_missing_or_damaged_file_is_a_problem(tmp_path, text, word):
    if text is not None:
        (tmp_path / "bad.toml").write_text(text)
    path = tmp_path / "job.json"
    path.write_text(json.dumps({"model": MODEL, "hardware": {"cluster": "bad.toml"}}))
    with pytest.raises(JobError) as error:
        load(path)
    assert word in str(error.value)
    assert all(problem.field.startswith("hardware") for problem in error.value.problems)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"compute": []}, "hardware.measured.compute"),
        ({"compute": 3}, "hardware.measured.compute"),
        ({"compute": [{**compute(1), "matmul": []}]}, "hardware.measured.compute[0].matmul"),
        (
            {"compute": [{**compute(1), "matmul": [[2.0, 1.0], [1.0, 1.0]]}]},
            "hardware.measured.compute[0].matmul",
        ),
        ({"compute": [{**compute(1), "matmul": [[1.0, math.nan]]}]}, "hardware.measured.compute[0].matmul"),
        ({"compute": [{**compute(1), "passes": -1.0}]}, "hardware.measured.compute[0].passes"),
        ({"compute": [compute(0)]}, "hardware.measured.compute[0].ranks"),
        ({"collectives": [link("gossip")]}, "hardware.measured.collectives[0].collective"),
        ({"collectives": [link(ranks=1)]}, "hardware.measured.collectives[0].ranks"),
        ({"memory_bytes": math.inf}, "hardware.measured.memory_bytes"),
    ],
)
def test_wrong_numbers_are_named(changes, field):
    problems = validate({"model": MODEL, "hardware": hardware(**changes)})
    assert [problem.field for problem in problems] == [field]


def test_times_come_from_the_file():
    """Twice the rates, half the time; without messages and launches there is nothing else."""
    quiet = {**compute(1), "kernel_s": 0.0}
    fast = {**compute(1, speed=2.0), "kernel_s": 0.0}
    base, twice = (seconds(job(hardware_=hardware(compute=[rates]))) for rates in (quiet, fast))
    assert base == pytest.approx(2 * twice)
    assert seconds(job(hardware_=hardware(compute=[{**quiet, "passes": 9.0}]))) > base
    assert seconds(job(hardware_=hardware(compute=[{**quiet, "optimizer_bytes_per_s": 1e6}]))) > base


def test_rates_are_those_of_as_many_ranks_and_of_the_precision():
    """Two ranks that share a machine are half as fast each; bf16 is measured by itself."""
    one, two = job(), job(parallel={"dp": 2}, train={"global_batch": 2})
    assert system_of(one).chip.matmul_flops == 40e9
    assert system_of(two).chip.matmul_flops == 20e9
    assert system_of(job(train={"precision": "bf16"})).chip.matmul_flops == 120e9
    many = job(parallel={"dp": 4}, train={"global_batch": 4})
    assert system_of(many).chip.matmul_flops == 20e9  # the most ranks that were measured


def test_products_have_the_rate_of_measured_ones_of_their_size():
    chip = system_of(job()).chip
    for size, rate in ((1e5, 2e9), (1e7, 20e9), (1e9, 40e9), (1e11, 40e9), (1e6, math.sqrt(2e9 * 20e9))):
        edge = round((size / 2) ** (1 / 3))
        work = 2.0 * edge**3
        assert work / matmul_s(edge, edge, edge, chip=chip, flops=40e9) == pytest.approx(rate, rel=0.05)
    small = [matmul_s(1, 1, k, chip=chip, flops=40e9) for k in (1, 1000)]
    assert small[0] == small[1]  # launch-bound


def test_collectives_take_what_was_timed():
    rates = tuple(
        CollectiveRate(**row)
        for row in (link(), link(ranks=4, start_s=3e-4), link("all_gather", start_s=5e-5))
    )
    assert measured_s("all_reduce", 1e6, 2, rates) == 1e-4 + 1e6 / 1e9
    assert measured_s("all_reduce", 1e6, 8, rates) == pytest.approx(
        3e-4 * 14 / 6 + sent_bytes("all_reduce", 1e6, 8) / 1e9
    )
    assert measured_s("all_gather", 0.0, 2, rates) == 5e-5
    assert measured_s("broadcast", 0.0, 2, rates) == 5e-5  # half of an all-reduce's two steps
    slow = hardware(collectives=[link(bytes_per_s=1e6)])
    shared = {"parallel": {"dp": 2}, "train": {"global_batch": 2}}
    assert seconds(job(**shared, hardware_=slow)) > seconds(job(**shared))


def test_a_prediction_of_a_measured_machine():
    result = predict(job(parallel={"dp": 2}, train={"global_batch": 2}))
    assert result["time"]["step_s"] > 0
    assert 0 < result["throughput"]["mfu"] <= 1
    assert peak_flops(job()) == 40e9
    assert memory_bytes(job()) == 2e9
    large = predict(job(layers=40, hidden=2048, heads=16))
    assert any("do not fit" in warning for warning in large["warnings"])
    assert "time" not in predict({"model": MODEL, "hardware": {"gpu": "cpu"}})


def test_measured_gpus_need_no_preset_and_nodes_a_link():
    rare = {**hardware(), "gpu": "NVIDIA Rare 9"}
    assert validate({"model": MODEL, "hardware": rare}) == []
    wide = {"model": MODEL, "parallel": {"dp": 8}, "hardware": hardware()}
    (problem,) = validate(wide)
    assert problem.field == "hardware.inter"
    assert validate({**wide, "hardware": {**hardware(), "inter": "ethernet-100g"}}) == []


def test_the_planner_plans_for_a_measured_machine():
    ranking = plan(job(train={"global_batch": 8}), num_gpus=4)
    assert ranking.plans
    assert all(found.memory_bytes <= 2e9 for found in ranking.plans)
    assert all(found.job.hardware.measured is not None for found in ranking.plans)
