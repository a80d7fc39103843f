"""Step time of strange but valid jobs: finite and sane, and better hardware moves it one way only."""

import math
from dataclasses import replace as changed

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdtlib.plan import flops, presets
from pdtlib.plan.job import from_dict, replace
from pdtlib.plan.predict import predict
from pdtlib.plan.time.constants import SOFTWARE, system_of
from pdtlib.plan.time.footprint import footprint
from pdtlib.plan.time.step import step_time

examples = settings(max_examples=40, deadline=None)
CAUSAL = flops.Conventions(attention="causal")
# What a smaller pipeline that stands for a large one may add in one direction or the other.
SLACK = 1.02


@st.composite
def strange_jobs(draw):
    """Any GPU, link and node; from one tiny layer on one rank to a hundred thousand ranks."""

    def one_of(*values):
        return draw(st.sampled_from(values))

    tp, cp, pp, dp = one_of(1, 2, 8, 16), one_of(1, 1, 2, 8), one_of(1, 2, 4, 16), one_of(1, 3, 64, 1024)
    schedule, vpp = "1f1b", 1
    if pp > 1:
        schedule = one_of("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe")
        vpp = {"interleaved": 2, "zb-v": 2}.get(schedule, 1)
    heads = tp * one_of(1, 2, 4)
    gpu = one_of(*presets.GPUS)
    model = {
        "layers": pp * vpp * one_of(1, 2, 5) + one_of(0, 1),
        "hidden": heads * 2 * one_of(8, 32, 64, 128),
        "heads": heads,
        "kv_heads": one_of(1, heads),
        "vocab": one_of(256, 32_000, 256_000),
        "seq": 2 * cp * tp * one_of(8, 128, 4096),
        "activation": one_of("gelu", "swiglu"),
        "ffn": tp * one_of(64, 1000, 4096),
        "tied_embeddings": one_of(True, False),
    }
    ep = 1
    if one_of(True, False):
        model["moe"] = {"experts": 16, "top_k": one_of(1, 2, 8), "ffn": model["ffn"]}
        ep = one_of(*(n for n in (1, 2, 8, 16) if dp * cp % n == 0))
    precisions = ["bf16", "fp16", "fp32"] + (["fp8"] if presets.GPUS[gpu].peak_fp8_flops else [])
    micro_batch = one_of(1, 2, 16)
    recompute = one_of("none", "selective", "full")
    return {
        "model": model,
        "train": {
            "micro_batch": micro_batch,
            "global_batch": micro_batch * dp * one_of(1, 3, 16, 100),
            "precision": one_of(*precisions),
            "zero_stage": one_of(0, 1, 2, 3),
            "recompute": recompute,
            **({"recompute_layers": 1} if recompute != "none" and one_of(True, False) else {}),
            "sequence_parallel": one_of(True, False),
            "flash_attention": one_of(True, False),
        },
        "parallel": {"dp": dp, "tp": tp, "pp": pp, "cp": cp, "ep": ep, "vpp": vpp, "schedule": schedule},
        "hardware": {"gpu": gpu, "gpus_per_node": one_of(1, 4, 8, 72), "inter": one_of(*presets.LINKS)},
    }


software = st.sampled_from(sorted(SOFTWARE))


def utilisation(job, seconds):
    """Executed share of the peak that the job's precision has: the masked half of attention not counted."""
    gpu = presets.GPUS[job.hardware.gpu]
    peak = gpu.peak_fp8_flops if job.train.precision == "fp8" else gpu.peak_flops
    tokens = job.train.global_batch * job.model.seq
    model = tokens * flops.model_flops_per_token(job.model, conventions=CAUSAL)
    return model / seconds / job.parallel.world_size / peak


@examples
@given(strange_jobs(), software)
def test_every_valid_job_has_a_sane_time(data, stack):
    job = from_dict(data)
    time = step_time(job, system=system_of(job, software=stack))
    parts = [time.compute_s, time.bubble_s, *time.exposed_s.values()]
    assert math.isfinite(time.step_s)
    assert min(parts) >= 0
    assert time.step_s == pytest.approx(sum(parts))
    assert 0 <= time.bubble_fraction < 1
    assert 0 < utilisation(job, time.step_s) < 1
    assert 0 < footprint(job, software=stack) < math.inf


@settings(max_examples=25, deadline=None)
@given(strange_jobs())
def test_every_valid_job_is_predicted(data):
    result = predict(data)
    assert result["problems"] == []
    assert result["time"]["step_s"] > 0
    assert all(math.isfinite(value) and value > 0 for value in result["throughput"].values())


@examples
@given(
    strange_jobs(),
    software,
    st.sampled_from(["matmul_flops", "fp8_flops", "memory_bytes_per_s"]),
    st.floats(1.0, 4.0),
)
def test_a_better_chip_is_never_slower(data, stack, field, times):
    job = from_dict(data)
    system = system_of(job, software=stack)
    better = changed(system, chip=changed(system.chip, **{field: getattr(system.chip, field) * times}))
    assert step_time(job, system=better).step_s <= step_time(job, system=system).step_s * SLACK


@examples
@given(
    strange_jobs(),
    software,
    st.sampled_from(
        [
            "intra_bytes_per_s",
            "pair_bytes_per_s",
            "inter_bytes_per_s",
            "intra_start_s",
            "intra_step_s",
            "inter_start_s",
            "inter_step_s",
        ]
    ),
    st.floats(1.0, 4.0),
)
def test_a_better_fabric_is_never_slower(data, stack, field, times):
    job = from_dict(data)
    system = system_of(job, software=stack)
    value = getattr(system.fabric, field)
    value = value * times if field.endswith("per_s") else value / times
    better = changed(system, fabric=changed(system.fabric, **{field: value}))
    assert step_time(job, system=better).step_s <= step_time(job, system=system).step_s * SLACK


@examples
@given(strange_jobs(), software, st.integers(1, 40))
def test_more_micro_batches_of_the_same_size_never_take_less(data, stack, more):
    job = from_dict(data)
    added = more * job.train.micro_batch * job.parallel.dp
    longer = replace(job, {"train.global_batch": job.train.global_batch + added})
    system = system_of(job, software=stack)
    assert step_time(longer, system=system).step_s >= step_time(job, system=system).step_s / SLACK


@examples
@given(strange_jobs(), software)
def test_more_overlap_and_less_software_are_never_slower(data, stack):
    job = from_dict(data)
    base = step_time(job, system=system_of(job, software=stack)).step_s
    habits = SOFTWARE[stack]
    for name in ("overlap_tp", "overlap_tp_back", "overlap_dp", "overlap_pp", "overlap_ep"):
        more = system_of(job, software=stack, **{name: (1 + getattr(habits, name)) / 2})
        assert step_time(job, system=more).step_s <= base * SLACK
    for name in ("passes", "kernel_s", "step_s"):
        less = system_of(job, software=stack, **{name: getattr(habits, name) / 2})
        assert step_time(job, system=less).step_s <= base * SLACK


def test_a_hundred_thousand_gpus():
    job = from_dict(
        {
            "model": {"preset": "llama3-405b"},
            "train": {"global_batch": 16384, "zero_stage": 1, "sequence_parallel": True},
            "parallel": {"dp": 1024, "tp": 8, "pp": 16, "vpp": 7},
            "hardware": {"cluster": "dgx-h100"},
        }
    )
    assert job.parallel.world_size > 100_000
    time = step_time(job, system=system_of(job))
    assert 0.2 < utilisation(job, time.step_s) < 0.6


def test_a_tiny_model_on_one_gpu_is_bound_by_launches():
    job = from_dict(
        {
            "model": {"layers": 1, "hidden": 16, "heads": 1, "vocab": 256, "seq": 16},
            "hardware": {"gpu": "B200"},
        }
    )
    assert utilisation(job, step_time(job, system=system_of(job)).step_s) < 1e-4


def test_tensor_parallelism_over_a_slow_network_is_slow():
    """Four GPUs that each stand alone in a node, with 100 Gb/s between them, and four on NVLink."""
    tables = {
        "model": {"preset": "llama3-8b"},
        "parallel": {"tp": 4},
        "hardware": {"gpu": "A100-SXM4-80", "gpus_per_node": 1, "inter": "ethernet-100g"},
    }
    alone = from_dict(tables)
    together = replace(alone, {"hardware.gpus_per_node": 4})
    slow, fast = (step_time(job, system=system_of(job)).exposed_s["tp"] for job in (alone, together))
    assert slow > 10 * fast
