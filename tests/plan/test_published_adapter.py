"""Published runs of kinds that the facts do not hold: other GPUs, mixtures of experts, fp4, no job at all."""

import copy
import json
import math
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import published  # noqa: E402  (a script, not a package)
import published_jobs  # noqa: E402
from published_metrics import predictions  # noqa: E402
from published_tables import gpu_of  # noqa: E402

FACTS = {
    case["id"]: case for case in json.loads((BENCHMARKS / "facts.json").read_text(encoding="utf-8"))["cases"]
}
RUNS = [case for case in FACTS.values() if case.get("model") and (case.get("train") or {}).get("framework")]
ONE = RUNS[0]
BRIDGE = {
    "id": "bridge",
    "group": "bridge",
    "metrics": [{"name": "tokens_per_s_per_gpu"}],
    "input": {
        "System": "DGX-GB200",
        "#-GPUs": "256",
        "Precision": "FP8-MX",
        "GBS": "2048",
        "MBS": "1",
        "Sequence Length": "4096",
        "TP": "1",
        "PP": "4",
        "CP": "1",
        "VP": "4",
        "EP": "64",
        "dims": "L61 h7168 a128 head_dim192 256 experts top8 moe_ffn2048 V129280",
    },
}


def changed(case, section, **values):
    """A copy of the case with fields of one section replaced."""
    case = copy.deepcopy(case)
    case[section].update(values)
    return case


def bridge(**values):
    return changed(
        BRIDGE, "input", **{name.replace("gpus", "#-GPUs"): value for name, value in values.items()}
    )


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("A100", "A100-SXM4-80"),
        ("NVIDIA H200 SXM", "H200"),
        ("DGX-B300", "GB300"),
        ("H100-96GB-HBM2e-500W", "H100-96GB-HBM2e(Meta)"),
        ("MI300X-OAM", "MI300X"),
        ("H800", "H800-SXM"),
    ],
)
def test_gpus_by_other_names(text, name):
    assert gpu_of(text) == name


def test_an_unknown_gpu_is_refused():
    with pytest.raises(ValueError, match="gpu='TPUv4'; valid: A100"):
        gpu_of("TPUv4")


def test_what_is_no_job_is_named_and_the_rest_is_scored():
    case = copy.deepcopy(ONE)
    del case["model"]["hidden"]
    tpu = changed(ONE, "hardware", gpu="TPUv4")
    scores, _, missing = published.score([case, tpu, ONE])
    assert len(missing) == 2
    assert "'hidden'" in missing[0]
    assert "TPUv4" in missing[1]
    assert scores


@pytest.mark.parametrize("gpu", ["H200", "B200", "GB200", "GB300", "MI300X", "H800", "V100-SXM3-32GB"])
def test_runs_on_every_other_gpu(gpu):
    for case in RUNS[::5]:
        precision = {"precision": "bf16"} if gpu.startswith("V") else {}
        moved = changed(changed(case, "hardware", gpu=gpu), "train", **precision)
        assert all(0 < value < math.inf for value in predictions(moved).values()), case["id"]


@pytest.mark.parametrize(
    ("section", "values"),
    [
        ("parallel", {"tp": 2, "pp": 3, "dp": None}),
        ("parallel", {"cp": 4}),
        ("train", {"micro_batch": None, "global_batch": None}),
        ("train", {"micro_batch": 7}),
        ("hardware", {"n_gpus": None}),
        ("hardware", {"inter": None, "gpus_per_node": None}),
    ],
)
def test_runs_with_gaps(section, values):
    """What a description leaves open is filled in; what is no job then is said to be none, never a crash."""
    cases = [changed(case, section, **values) for case in RUNS]
    scores, _, missing = published.score(cases)
    assert all(0 < score.predicted < math.inf for score in scores)
    assert len({score.id for score in scores}) > len(RUNS) / 2
    assert all("Error" in line for line in missing)


def test_a_mixture_of_experts():
    moe = {"experts": 64, "top_k": 4, "ffn": 1024, "shared": 1}
    case = changed(changed(ONE, "model", moe=moe), "parallel", ep=8)
    job = published_jobs.job_of(case)
    assert (job.model.moe.experts, job.model.moe.top_k, job.model.moe.ffn) == (64, 5, 1024)
    assert job.parallel.ep == math.gcd(8, job.parallel.dp)
    assert 0 < predictions(case)["mfu"] < 1


def test_fp4_is_faster_than_fp8_and_fp8_than_bf16():
    rates = [
        predictions(bridge(Precision=precision))["tokens_per_s_per_gpu"]
        for precision in ("BF16", "FP8-MX", "NVFP4")
    ]
    assert rates == sorted(rates)
    assert rates[2] < 2 * rates[1]


def test_a_rack_is_one_nvlink_domain():
    """Its experts' messages do not leave NVLink, so the rack beats nodes of eight of the like."""
    job = published_jobs.job_of(BRIDGE)
    assert job.hardware.gpus_per_node == 72
    slower = predictions(bridge(System="DGX-B200"))["tokens_per_s_per_gpu"]
    assert predictions(BRIDGE)["tokens_per_s_per_gpu"] > 1.1 * slower


def test_gpu_hours_count_what_the_papers_count():
    """Llama 1's are tokens over a rate; those of Llama 2 and 3 include what did not train."""
    named = {
        name: published_jobs.budget_of({"model": {"name": name}}) for name in ("LLaMA1-13B", "LLaMA2-13B")
    }
    assert named == {"LLaMA1-13B": (1.0e12, 1.0), "LLaMA2-13B": (2.0e12, 0.9)}
    assert published_jobs.budget_of({"model": {"name": "Llama3.1-405B"}})[0] == 15.6e12
    assert published_jobs.budget_of({"model": {"name": "GPT-3"}}) == (0.0, 1.0)


DEEPSEEK = {
    # arXiv:2412.19437: Tables 1 (2.664 M GPU-hours of pre-training), section 4.2 (shape), 3.2 (layout).
    "id": "deepseek-v3",
    "group": "gpu_hours",
    "kind": "gpu_hours",
    "model": {
        "name": "DeepSeek-V3",
        "layers": 61,
        "hidden": 7168,
        "heads": 128,
        "ffn": 18432,
        "vocab": 129280,
        "seq": 4096,
        "activation": "swiglu",
        "moe": {"experts": 256, "top_k": 8, "ffn": 2048, "shared": 1},
    },
    "train": {"global_batch": 15360, "precision": "fp8", "zero_stage": 1, "framework": "HAI-LLM (DualPipe)"},
    "parallel": {"tp": 1, "pp": 16, "ep": 64},
    "hardware": {"gpu": "H800", "n_gpus": 2048},
    "metrics": [{"name": "gpu_hours", "value": 2.664e6}],
}


def test_gpu_hours_of_a_run_that_nothing_was_fitted_to():
    """DeepSeek-V3: another mixture, GPU, schedule and software than any run behind the constants."""
    (score,) = (item for item in published.score([DEEPSEEK])[0] if item.metric == "gpu_hours")
    assert abs(score.error) < 0.2
    assert published_jobs.job_of(DEEPSEEK).parallel.schedule == "dualpipe"


def test_experts_parameters_are_dealt_out():
    """Over 64 ranks a DeepSeek-V3 fits; its 671 G parameters over 16 stages alone would be 84 GB in bf16."""
    assert (
        predictions(DEEPSEEK)["memory_GB"] < predictions(changed(DEEPSEEK, "parallel", ep=1))["memory_GB"] / 2
    )
