"""Step time: against published runs, against the schedule simulator, and where physics says which way."""

import copy
import json
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from pdtlib.plan.comm import sent_bytes
from pdtlib.plan.job import from_dict, replace
from pdtlib.plan.time import collectives, constants, kernels
from pdtlib.plan.time.layer import layer_time
from pdtlib.plan.time.step import step_time

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import published  # noqa: E402  (a script, not a package)

FACTS = json.loads((BENCHMARKS / "facts.json").read_text(encoding="utf-8"))["cases"]
SCORES, ROWS, _ = published.score(FACTS)

GPT3 = {
    "model": {"preset": "gpt3-175b", "vocab": 51200},
    "train": {"global_batch": 1536, "precision": "fp16", "recompute": "full", "flash_attention": False},
    "parallel": {"dp": 8, "tp": 8, "pp": 12},
    "hardware": {"cluster": "dgx-a100"},
}


def seconds(job, software="megatron-2021", **changes):
    return step_time(job, system=constants.system_of(job, software=software, **changes)).step_s


def errors(group, *metrics):
    found = [s.error for s in SCORES if s.group == group and (not metrics or s.metric in metrics)]
    assert found
    return found


@pytest.mark.parametrize(
    ("group", "metrics", "mean", "worst"),
    [
        ("kor22_time", ("iteration_time_s",), 0.03, 0.08),
        ("kor22_layer", (), 0.06, 0.08),
        ("nar21_T1", (), 0.04, 0.10),
        ("nar21_T2_zero3", (), 0.10, 0.25),
        ("megascale", (), 0.07, 0.15),
        ("torchtitan", ("tokens_per_s_per_gpu",), 0.06, 0.18),
        ("torchtitan", ("memory_GiB",), 0.06, 0.12),
        ("mcore_h100", ("tflops_per_gpu",), 0.035, 0.10),
        ("frontier_time", ("tflops_per_gpu", "iteration_time_s"), 0.05, 0.10),
        ("gpu_hours", (), 0.13, 0.27),
        ("zb_time", ("samples_per_gpu_per_s",), 0.03, 0.10),
        ("zb_time", ("memory_GB",), 0.03, 0.05),
        ("zb_time", ("speedup_zb2p_over_1f1b", "zbv_over_1f1b", "zb1p_over_1f1b"), 0.04, 0.06),
    ],
)
def test_published_runs(group, metrics, mean, worst):
    found = [abs(error) for error in errors(group, *metrics)]
    assert sum(found) / len(found) <= mean
    assert max(found) <= worst


@pytest.mark.parametrize("group", ["exact", "zb_bubble"])
def test_exact_rows_are_inside_their_tolerances(group):
    judged = [score for score in SCORES if score.group == group]
    assert len(judged) > 30
    assert all(score.within for score in judged), [score for score in judged if not score.within]


def test_predictions_do_not_look_at_the_values():
    blind = copy.deepcopy([case for case in FACTS if case["group"] != "zb_bubble"])
    for case in blind:
        for metric in case["metrics"]:
            metric.pop("value", None)
    names = {case["id"] for case in blind}
    assert published.score(blind)[1] == [row for row in ROWS if row["id"] in names]


def test_orderings_of_korthikantis_table_4():
    """Sequence parallelism is faster; recomputation costs more the more it recomputes."""
    found = {row["id"]: row["value"] for row in ROWS if row["metric"] == "combined_ms"}
    by_name = {name.removeprefix("kor22-t4-"): value for name, value in found.items()}
    assert by_name["baseline_no_recompute"] < by_name["selective"] < by_name["full_recompute"]
    assert by_name["sequence_parallel"] < by_name["baseline_no_recompute"]
    assert by_name["selective_sp"] < by_name["selective"]


def test_a_fixed_batch_on_twice_the_gpus_starves_zero_3():
    """Narayanan 2021, Table 2: doubling the GPUs at a fixed batch loses at least 30 % of each GPU's rate."""
    found = [s.predicted for s in SCORES if s.group == "nar21_T2_zero3"]
    assert all(after < 0.7 * before for before, after in pairwise(found))


def test_parts_sum_to_the_step():
    for parallel in ({"dp": 8, "tp": 8, "pp": 12}, {"dp": 64, "tp": 8, "pp": 1}, {"dp": 8, "tp": 1, "cp": 8}):
        job = from_dict({**GPT3, "model": {**GPT3["model"], "dropout": 0.0}, "parallel": parallel})
        time = step_time(job, system=constants.system_of(job))
        assert time.step_s == pytest.approx(time.compute_s + time.bubble_s + sum(time.exposed_s.values()))
        assert min(time.compute_s, time.bubble_s, *time.exposed_s.values()) >= 0


def test_recomputation_costs_time():
    job = from_dict(GPT3)
    found = [seconds(replace(job, {"train.recompute": kind})) for kind in ("none", "selective", "full")]
    assert found == sorted(found)
    assert 1.2 < found[2] / found[0] < 1.4


@pytest.mark.parametrize(
    ("name", "value"),
    [("overlap_tp", 0.5), ("overlap_dp", 0.5), ("overlap_pp", 0.5), ("passes", 1.0), ("matmul_share", 1.0)],
)
def test_better_software_is_faster(name, value):
    job = from_dict(GPT3)
    assert seconds(job, **{name: value}) < seconds(job)


def test_a_faster_network_is_never_slower():
    job = from_dict({**GPT3, "train": {**GPT3["train"], "zero_stage": 1}})
    found = [
        seconds(replace(job, {"hardware.inter": link}))
        for link in ("omnipath-50", "ib-hdr-100", "ib-hdr-200")
    ]
    assert found[0] > found[1] > found[2]


def test_tensor_parallelism_across_nodes_is_slow():
    """16 ranks span two nodes: each of the layer's messages crosses the network."""
    inside = from_dict({**GPT3, "parallel": {"dp": 4, "tp": 8, "pp": 12}})
    across = replace(inside, {"parallel.tp": 16, "parallel.dp": 2})
    assert seconds(across) > seconds(inside)


def test_weak_scaling_is_nearly_flat():
    small = from_dict(GPT3)
    large = replace(small, {"parallel.dp": 64, "train.global_batch": 8 * 1536})
    assert seconds(small) < seconds(large) < 1.05 * seconds(small)


def test_small_layers_are_bound_by_launches():
    job = from_dict(
        {
            "model": {"layers": 2, "hidden": 128, "heads": 2, "vocab": 512, "seq": 64},
            "hardware": {"cluster": "dgx-a100"},
        }
    )
    system = constants.system_of(job, software="megatron-2021")
    found = layer_time(job, system=system).forward.compute_s
    assert found % system.software.kernel_s == pytest.approx(0, abs=1e-9)
    faster = constants.system_of(job, software="megatron-2021", kernel_s=1e-6)
    assert layer_time(job, system=faster).forward.compute_s < found


def test_large_products_reach_the_measured_rate():
    chip = constants.chip("A100-SXM4-80")
    took = kernels.matmul_s(8192, 8192, 8192, chip=chip, flops=chip.matmul_flops)
    assert 0.9 < 2 * 8192**3 / took / chip.matmul_flops <= 1


def test_wave_quantisation():
    """One tile more than a wave holds costs more than its share."""
    chip = constants.chip("A100-SXM4-80")

    def rate(tiles):
        size = 2 * 256 * 128 * tiles * 4096
        return size / kernels.matmul_s(256, 128 * tiles, 4096, chip=chip, flops=chip.matmul_flops)

    assert rate(chip.multiprocessors) > 1.2 * rate(chip.multiprocessors + 1)


def test_collectives_approach_the_links_rate():
    """nccl-tests on eight A100s: 234.9 GB/s of bus bandwidth at 16 GiB, 1.3 GB/s at 32 KiB."""
    links = constants.fabric("A100-SXM4-80", "ib-hdr-200")

    def bus_rate(size):
        took = collectives.collective_s("all_reduce", size, 8, fabric=links, ranks_per_node=8)
        return sent_bytes("all_reduce", size, 8) / took / 1e9

    assert bus_rate(16 * 2**30) == pytest.approx(234.9, rel=0.05)
    assert bus_rate(2**26) == pytest.approx(171.5, rel=0.15)
    assert bus_rate(2**15) == pytest.approx(1.31, rel=0.35)
    assert [bus_rate(2**n) for n in range(15, 34)] == sorted(bus_rate(2**n) for n in range(15, 34))


def test_all_ranks_of_a_node_bring_their_network_cards():
    links = constants.fabric("A100-SXM4-80", "ib-hdr-200")
    alone, together = (
        collectives.collective_s("all_reduce", 1e9, 64, fabric=links, ranks_per_node=near) for near in (1, 8)
    )
    assert alone == pytest.approx(8 * together, rel=0.05)


def test_what_has_no_rates_is_refused():
    job = from_dict({"model": {"preset": "gpt2"}})
    with pytest.raises(ValueError, match="valid: V100"):
        constants.system_of(job)
    with pytest.raises(ValueError, match="valid: megatron-2021"):
        constants.system_of(from_dict(GPT3), software="megatron")


def test_scores():
    assert published.rank_correlation([(1, 10), (2, 20), (3, 30)]) == pytest.approx(1)
    assert published.rank_correlation([(1, 30), (2, 20), (3, 10)]) == pytest.approx(-1)
    assert published.rank_correlation([(1, 1), (2, 2)]) is None
    assert published.within(1.05, {"value": 1.0, "tol_rel": 0.1})
    assert not published.within(1.2, {"value": 1.0, "tol_abs": 0.1})
    assert published.within(1.2, {"value": 1.2, "max_value_plus": 0})
    assert published.within(1.2, {"value": 1.0}) is None


def test_the_score_script(tmp_path, capsys, monkeypatch):
    out, few = tmp_path / "predictions.jsonl", tmp_path / "few.json"
    few.write_text(json.dumps({"cases": FACTS[:12]}))
    monkeypatch.setattr(sys, "argv", ["published.py", str(few), "--predictions", str(out), "--json"])
    published.main()
    groups = json.loads(capsys.readouterr().out)["groups"]
    assert {"group", "metric", "n", "mape", "worst", "within_tolerance", "rank_correlation"} <= set(groups[0])
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert rows
    assert rows == ROWS[: len(rows)]
