"""The planner: what it finds fits and works, what it refuses it counts, and it is quick."""

import json
import time
from collections import Counter

import pytest

from pdtlib.cli import app
from pdtlib.plan import presets
from pdtlib.plan.job import from_dict, replace, validate
from pdtlib.plan.planner import candidates, plan, scaling, sizes_for
from pdtlib.plan.planner.article import TABLE, check_row
from pdtlib.plan.planner.search import OUT_OF_MEMORY, _fewest_recomputed
from pdtlib.plan.time.constants import USUAL_SOFTWARE, system_of
from pdtlib.plan.time.footprint import footprint
from pdtlib.plan.time.step import step_time


def job_on(model, batch, cluster="dgx-h100", **train):
    return from_dict(
        {
            "model": {"preset": model},
            "train": {"global_batch": batch, **train},
            "hardware": {"cluster": cluster},
        }
    )


LLAMA_8B, LLAMA_405B = job_on("llama3-8b", 128), job_on("llama3-405b", 2048)


@pytest.mark.parametrize(
    ("job", "gpus"), [(LLAMA_8B, 8), (LLAMA_8B, 12), (LLAMA_405B, 1024), (job_on("mixtral-8x7b", 256), 64)]
)
def test_plans_are_jobs_that_work_and_fit(job, gpus):
    ranking = plan(job, num_gpus=gpus, top=8)
    assert 0 < len(ranking.plans) <= 8
    capacity = presets.GPUS[job.hardware.gpu].memory_bytes
    for found in ranking.plans:
        assert validate(found.job) == []
        assert found.job.parallel.world_size == found.job.hardware.n_gpus == gpus
        assert found.job.model == job.model
        assert found.job.train.global_batch == job.train.global_batch
        assert found.memory_bytes <= capacity
        assert found.time == step_time(found.job, system=system_of(found.job))
    steps = [found.time.step_s for found in ranking.plans]
    assert steps == sorted(steps)
    assert len(ranking.losses()) == len(ranking.plans) - 1


def test_what_nvidia_runs_for_405b_is_near_the_best():
    """Megatron-Bridge's own Llama 3.1 405B on 1,024 H100s: tp 8, pp 8, cp 2, interleaved by 8."""
    job = job_on("llama3-405b", 512)
    best = plan(job, num_gpus=1024, top=1).plans[0]
    theirs = replace(
        job,
        {
            "parallel.tp": 8,
            "parallel.pp": 8,
            "parallel.cp": 2,
            "parallel.vpp": 8,
            "parallel.dp": 8,
            "train.zero_stage": 1,
            "train.sequence_parallel": True,
        },
    )
    seconds = step_time(theirs, system=system_of(theirs)).step_s
    assert seconds == pytest.approx(best.time.step_s, rel=0.1)


def test_no_hand_made_layout_beats_the_plan():
    best = plan(LLAMA_405B, num_gpus=1024, top=1).plans[0]
    for tp, pp in [(8, 16), (8, 8), (4, 16)]:
        other = replace(
            LLAMA_405B,
            {
                "parallel.tp": tp,
                "parallel.pp": pp,
                "parallel.dp": 1024 // tp // pp,
                "train.recompute": "full",
                "train.zero_stage": 1,
                "train.sequence_parallel": True,
            },
        )
        assert step_time(other, system=system_of(other)).step_s > best.time.step_s


def test_less_memory_never_makes_a_faster_plan():
    limits = [60e9, 80e9, 160e9]
    found = [plan(LLAMA_405B, num_gpus=1024, top=1, memory_bytes=limit).plans for limit in limits]
    steps = [plans[0].time.step_s if plans else float("inf") for plans in found]
    assert steps == sorted(steps, reverse=True)


def test_what_does_not_fit_is_counted():
    ranking = plan(LLAMA_405B, num_gpus=8, top=3)
    assert ranking.plans == ()
    assert ranking.num_fitting == 0
    assert ranking.rejected[OUT_OF_MEMORY] > 0


def test_rejections_name_their_reason():
    odd = job_on("gpt2-xl", 48, "dgx-a100")  # 25 heads, a vocabulary of 50,257, 48 sequences
    rejected = plan(odd, num_gpus=32).rejected
    assert rejected["heads do not split over tp"] > 0
    assert rejected["the global batch is no multiple of micro-batch x dp"] > 0


def test_405b_on_16384_gpus_is_planned_in_seconds():
    start = time.process_time()
    best = plan(LLAMA_405B, num_gpus=16384).plans[0]
    assert time.process_time() - start < 5
    assert 0.4 < best.mfu < 0.6  # Llama 3's own run reached 41 % (arXiv:2407.21783, Table 4)


@pytest.mark.parametrize(("job", "gpus"), [(LLAMA_8B, 8), (job_on("mixtral-8x7b", 256), 32)])
def test_the_best_is_the_best_of_all_that_fit(job, gpus):
    """Layouts that the search leaves after a bound are timed here, too: none of them is faster."""
    best = plan(job, num_gpus=gpus, top=1)
    system, capacity = system_of(job), presets.GPUS[job.hardware.gpu].memory_bytes
    fitting = []
    for layout in candidates(job, num_gpus=gpus, rejected=Counter()):
        held = footprint(layout, software=USUAL_SOFTWARE)
        if held <= capacity:
            full = layout.train.recompute == "full"
            fitting.append(_fewest_recomputed(layout, held, capacity, USUAL_SOFTWARE)[0] if full else layout)
    assert len(fitting) > 100
    steps = [step_time(layout, system=system).step_s for layout in fitting]
    assert best.plans[0].time.step_s == min(steps)
    least = [step_time(layout, system=system, most_actions=0).step_s for layout in fitting]
    assert all(bound <= seconds for bound, seconds in zip(least, steps, strict=True))
    assert any(bound < 0.9 * seconds for bound, seconds in zip(least, steps, strict=True))


def test_scaling_curves():
    """Weak scaling keeps each GPU's rate; strong scaling loses it."""
    start = replace(LLAMA_8B, {"parallel.dp": 8})
    weak = scaling(start, [8, 64], weak=True)
    assert [point.plan.job.train.global_batch // point.gpus for point in weak] == [
        start.train.global_batch // 8
    ] * 2
    assert weak[0].efficiency == 1
    assert min(point.efficiency for point in weak) > 0.9
    strong = scaling(start, [8, 32, 128], weak=False)
    assert {point.plan.job.train.global_batch for point in strong} == {start.train.global_batch}
    totals = [point.plan.tokens_per_s for point in strong]
    assert totals == sorted(totals)
    assert totals[-1] / totals[0] < 16
    assert strong[-1].efficiency == pytest.approx(totals[-1] / totals[0] / 16)


def test_the_curves_reach_100_000_gpus():
    """Weak scaling of 405B from 64 nodes on: bubbles and messages cost little."""
    sizes = [size for size in sizes_for(LLAMA_405B) if size >= 512]
    assert sizes[-1] == 98304
    points = scaling(LLAMA_405B, [sizes[0], sizes[-1]], weak=True)
    assert [point.plan.job.parallel.world_size for point in points] == [512, 98304]
    assert 0.8 < points[-1].efficiency <= 1.01


def test_gpu_hours_and_money_follow_from_the_rate(capsys, job_file):
    best = plan(LLAMA_8B, num_gpus=8, top=1).plans[0]
    assert best.gpu_hours(3600 * best.tokens_per_s) == pytest.approx(8)
    words = ["plan", job_file, "--gpus", 64, "--top", 1, "--tokens", 1e12, "--price", 2.5, "--json"]
    code, out, _ = pdt(capsys, *words)
    assert code == 0
    (row,) = json.loads(out)["candidates"]
    rate = row["prediction"]["throughput"]["tokens_per_s"]
    assert row["gpu_hours"] == pytest.approx(1e12 / rate / 3600 * 64)
    assert row["cost"] == pytest.approx(2.5 * row["gpu_hours"])


@pytest.mark.parametrize("kind", ["strong", "weak"])
def test_pdt_plan_scaling(capsys, job_file, kind):
    words = ["plan", job_file, "--scaling", kind, "--sizes", "8,16", "--tokens", 1e12, "--price", 2]
    code, out, _ = pdt(capsys, *words, "--json")
    assert code == 0
    report = json.loads(out)
    first, second = report["points"]
    assert (report["scaling"], first["gpus"], second["gpus"]) == (kind, 8, 16)
    assert first["efficiency"] == 1
    assert second["cost"] == pytest.approx(2 * second["gpu_hours"])
    if kind == "strong":
        code, out, _ = pdt(capsys, *words)
        assert code == 0
        assert "efficiency" in out


def test_pdt_plan_scaling_refuses(capsys, job_file):
    code, out, _ = pdt(capsys, "plan", job_file, "--scaling", "sideways", "--sizes", "8,x", "--json")
    assert code == 2
    assert [problem["field"] for problem in json.loads(out)["problems"]] == ["--scaling", "--sizes"]


MEMORY = 40e9


def test_no_more_layers_are_recomputed_than_memory_asks_for():
    """In 40 GB much of 8B fits with recomputation alone: one layer a chunk fewer would not fit any more."""
    tight = plan(LLAMA_8B, num_gpus=8, memory_bytes=MEMORY, top=40)
    parts = [found for found in tight.plans if 1 < found.job.train.recompute_layers < 32]
    assert parts
    for found in parts:
        layers = found.job.train.recompute_layers
        fewer = replace(found.job, {"train.recompute_layers": layers - 1})
        held = footprint(found.job, software=USUAL_SOFTWARE)
        assert held == found.memory_bytes <= MEMORY
        assert footprint(fewer, software=USUAL_SOFTWARE) > MEMORY
        whole = replace(found.job, {"train.recompute_layers": 32})
        assert step_time(whole, system=system_of(whole)).step_s >= found.time.step_s


def test_other_schedules_are_looked_at_on_demand():
    job = job_on("gpt3-175b", 256, "dgx-a100")
    usual = plan(job, num_gpus=256, top=3)
    assert {found.job.parallel.schedule for found in usual.plans} <= {"1f1b", "interleaved"}
    zero_bubble = plan(job, num_gpus=256, top=3, schedules=("1f1b", "zb-h1", "zb-v", "dualpipe"))
    assert all(validate(found.job) == [] for found in zero_bubble.plans)
    assert {found.job.parallel.schedule for found in zero_bubble.plans} - {"1f1b"}
    one = plan(job, num_gpus=256, top=1, schedules=("1f1b",)).plans[0]
    assert zero_bubble.plans[0].time.step_s <= one.time.step_s
    with pytest.raises(ValueError, match="valid: one or more of gpipe"):
        plan(job, schedules=("zigzag",))


def test_the_articles_table_row_by_row():
    """Section 7.1: the states fit, but no pipeline takes ZeRO-3 in DeepSpeed or Megatron, and 105 layers
    leave a rest on 16 stages. With ZeRO-1, and chunks, micro-batch and recomputation in their favour, all are
    near the planner's best, and the last is the best."""
    found = [check_row(row) for row in TABLE]
    assert [row.tp * row.pp * row.dp for row in TABLE] == [row.gpus for row in TABLE]
    assert [round(check.state_bytes / 1e9, 2) for check in found] == [26.25, 24.38, 8.75, 5.47, 8.28]
    assert [round(check.state_bytes_zero_1 / 1e9, 1) for check in found[2:]] == [15.3, 15.0, 22.8]
    assert [check.layers_per_stage for check in found] == [32, 40, 20, 12, 6.5625]
    assert [round(check.days) for check in found] == [487, 452, 304, 190, 288]
    for check in found:
        fields = {problem.field for problem in check.refused.get("deepspeed", ())}
        assert ("train.zero_stage" in fields) == (check.row.pp > 1)
    assert "parallel.pp" in {problem.field for problem in found[4].refused["megatron"]}
    assert [round(check.loses, 2) for check in found] == [0, 0.01, 0.07, 0.05, 0]
    for check in found:
        row, own = check.row, check.own.job
        assert (own.parallel.tp, own.parallel.pp, own.parallel.dp) == (row.tp, row.pp, row.dp)
        assert own.train.zero_stage == (1 if row.pp > 1 else row.zero_stage)
        assert (own.parallel.vpp > 1) == (row.pp > 1)
    assert found[4].own == found[4].best


def test_a_row_of_the_table_is_no_worse_than_any_choice_of_what_it_leaves_open():
    """Interleaving is one of the choices: without chunks the 70B row would be a tenth slower."""
    row = TABLE[2]
    best_s = check_row(row).own.time.step_s
    steps = {}
    for vpp in (1, 2, 4, 8):
        for micro_batch in (1, 2):
            changes = {"train.zero_stage": 1, "train.recompute": "none", "train.micro_batch": micro_batch}
            job = replace(row.job(), {**changes, "parallel.vpp": vpp})
            if footprint(job, software=USUAL_SOFTWARE) <= presets.GPUS[job.hardware.gpu].memory_bytes:
                steps[vpp, micro_batch] = step_time(job, system=system_of(job)).step_s
    assert min(steps.values()) == pytest.approx(best_s)
    assert min(s for (vpp, _), s in steps.items() if vpp == 1) > 1.05 * best_s


def test_only_some_layouts_may_be_looked_at():
    found = plan(LLAMA_8B, num_gpus=8, top=3, only=lambda layout: layout.parallel.tp == 2)
    assert {each.job.parallel.tp for each in found.plans} == {2}
    assert found.num_fitting < plan(LLAMA_8B, num_gpus=8, top=3).num_fitting


def test_a_cpu_has_no_rates():
    with pytest.raises(ValueError, match="no published rates"):
        plan(from_dict({"model": {"preset": "gpt2"}}))
    with pytest.raises(ValueError, match="valid: 1 or more"):
        plan(LLAMA_8B, num_gpus=0)


def pdt(capsys, *words):
    with pytest.raises(SystemExit) as caught:
        app.main([str(word) for word in words])
    out = capsys.readouterr()
    return caught.value.code or 0, out.out, out.err


@pytest.fixture
def job_file(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(
        '[model]\npreset = "llama3-8b"\n[train]\nglobal_batch = 64\n[hardware]\ncluster = "dgx-h100"\n'
    )
    return path


def test_pdt_plan(capsys, job_file):
    code, out, _ = pdt(capsys, "plan", job_file, "--gpus", 16, "--top", 2, "--tokens", 1e12, "--json")
    assert code == 0
    result = json.loads(out)
    assert len(result["candidates"]) == 2
    first = result["candidates"][0]
    assert from_dict(first["job"]).parallel.world_size == 16
    assert first["prediction"]["time"]["step_s"] > 0
    assert first["gpu_hours"] > 0
    assert sum(result["rejected"].values()) > 0
    code, out, _ = pdt(capsys, "plan", job_file, "--gpus", 16)
    assert code == 0
    assert "layouts fit" in out


def test_pdt_plan_refuses(capsys, tmp_path, job_file):
    bad = tmp_path / "cpu.toml"
    bad.write_text('[model]\npreset = "gpt2"\n')
    code, out, err = pdt(capsys, "plan", bad, "--json")
    assert code == 2
    assert json.loads(out)["problems"][0]["field"] == "hardware.gpu"
    assert "planning needs rates" in err
    wrong = (("--gpus", -3), ("--top", 0), ("--tokens", "nan"), ("--tokens", "inf"), ("--price", -1))
    for option, value in wrong:
        code, out, err = pdt(capsys, "plan", job_file, option, value)
        assert (code, out) == (2, "")
        assert option in err
    job_file.write_text(job_file.read_text().replace("llama3-8b", "llama3-405b"))
    assert pdt(capsys, "plan", job_file, "--gpus", 8)[0] == 1
