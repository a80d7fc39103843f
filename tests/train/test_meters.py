"""The meters of a run: what they cost, and that they measure what they say."""

import time
from pathlib import Path

import pytest
import torch
from launching import Options, check, write_job

from pdtlib.engine.mesh import build_mesh
from pdtlib.engine.models import Transformer
from pdtlib.engine.training import run_dir
from pdtlib.engine.training.report import Report
from pdtlib.engine.training.step import StepResult
from pdtlib.observe.meters import DEVICE_NAMES, matmul_flops_per_s, peak
from pdtlib.observe.trace import Span, Timeline, covered_s, perfetto
from pdtlib.plan.presets import GPUS

SMALL = """
[model]
layers = 4
hidden = 128
heads = 4
vocab = 256
seq = 128
activation = "swiglu"
[train]
global_batch = 16
micro_batch = 4
precision = "fp32"
"""
"""The smallest job that anyone trains to see something: half a million parameters, 2,048 tokens a step."""


def test_meters_cost_less_than_a_hundredth_of_a_step(tmp_path: Path) -> None:
    """Processor time of everything that observes a step, against that of the step's computation."""
    torch.set_num_threads(1)
    options = Options(job=write_job(tmp_path, SMALL), out=tmp_path / "out")
    run = check(options, world_size=1, local_world_size=1)
    run_dir.begin(options.out, job=run.job, resume_step=None)
    report = Report(run, mesh=build_mesh(run.job.parallel), first=0)
    num_steps = 100
    start = time.thread_time()
    for step in range(num_steps):
        report.begin_step()
        for _ in range(4 * 2 + 3):
            with report.timeline.span("compute", "forward"):
                pass
        for _ in range(30):  # the messages of ZeRO-3 on this model
            token = report.timeline.begin("communication", "message")
            with report.timeline.span("wait", "message"):
                pass
            report.timeline.end(token)
            report.mesh.ledger.record(
                axis="dp", collective="all_gather", phase="forward", message_bytes=2**16, group_size=4
            )
        report.end_step(step, StepResult(1.0, 1.0, 2048), learning_rate=1e-3)
    cost_s = (time.thread_time() - start) / num_steps
    report.close(steps_done=num_steps)

    model = Transformer(run.job.model)
    step_s = float("inf")
    for _ in range(3):
        start = time.thread_time()
        for _ in range(run.job.gradient_accumulation):
            model(torch.zeros(4, 128, dtype=torch.long)).float().square().mean().backward()
        step_s = min(step_s, time.thread_time() - start)
    assert cost_s < 0.01 * step_s, f"{cost_s * 1e6:.0f} µs of {step_s * 1e3:.1f} ms"


def test_spans_measure_time_and_ranks_line_up() -> None:
    before = time.time()
    one, two = Timeline(), Timeline()
    with one.span("compute", "sleep"):
        time.sleep(0.05)
        token = two.begin("communication", "late")
        time.sleep(0.05)
    two.end(token)
    (sleep,), (late,) = one.finish_step(), two.finish_step()
    assert 0.1 <= sleep.end_s - sleep.start_s < 2
    assert before <= sleep.start_s <= late.start_s <= sleep.end_s <= late.end_s + 0.01
    assert one.finish_step() == []


def test_a_span_ends_when_its_body_fails() -> None:
    timeline = Timeline()
    with pytest.raises(RuntimeError), timeline.span("compute", "x"):
        raise RuntimeError
    assert [span.name for span in timeline.finish_step()] == ["x"]


def test_overlapping_waits_count_once() -> None:
    spans = [
        Span("wait", "a", 0, 2),
        Span("wait", "b", 1, 3),
        Span("wait", "c", 1, 1.5),
        Span("wait", "d", 5, 6),
    ]
    assert covered_s(spans, "wait") == 4
    assert covered_s(spans, "compute") == 0


def test_perfetto_times_are_microseconds_from_the_first_span() -> None:
    ranks = {1: [Span("compute", "b", 10.5, 11.0)], 0: [Span("communication", "a", 10.0, 10.25)]}
    events = [event for event in perfetto(ranks)["traceEvents"] if event["ph"] != "M"]
    assert [(event["ph"], event["pid"], event["ts"]) for event in events] == [
        ("b", 0, 0.0),
        ("e", 0, 0.25e6),
        ("X", 1, 0.5e6),
    ]
    assert events[2]["dur"] == 0.5e6


def test_the_peak_of_a_cpu_is_measured_and_that_of_a_gpu_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    found = peak(torch.device("cpu"), dtype=torch.float32)
    assert found.flops_per_s > 1e8
    assert "measured at start" in found.source
    assert {preset for _, preset in DEVICE_NAMES} <= set(GPUS)
    for reported, preset in (
        ("NVIDIA H100 80GB HBM3", "H100-SXM5"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA B200", "B200"),
    ):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device, name=reported: name)
        found = peak(torch.device("cuda"), dtype=torch.bfloat16)
        assert found.flops_per_s == GPUS[preset].peak_flops
        assert found.source.startswith(preset)


def test_a_matmul_rate_counts_two_flops_a_multiplication(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))
    rate = matmul_flops_per_s(torch.device("cpu"), dtype=torch.float32, size=8, seconds=3.0)
    assert rate == 2 * 8**3  # every product takes one tick
