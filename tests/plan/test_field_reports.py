"""Field reports: what went wrong for others, asked of every part of the plan that could go wrong alike.

Each report has the input that its reporter had and the answer that was verified; the random jobs of
``test_properties.py`` stand for its kind.
"""

import json
import tomllib

import pytest

from pdtlib.plan.activations import logits_bytes
from pdtlib.plan.batch import gradient_accumulation
from pdtlib.plan.export import export
from pdtlib.plan.job import JobError, from_dict, validate
from pdtlib.plan.memory import stages_memory
from pdtlib.plan.params import count
from pdtlib.plan.planner import plan
from pdtlib.plan.predict import predict
from pdtlib.plan.schedule import Costs, build, check, lower, simulate
from pdtlib.plan.states import Accounting, zero_state_bytes

SMALL = {"hidden": 64, "heads": 4, "vocab": 128, "seq": 32}


def test_a01_a_gated_mlp_has_three_matrices():
    """A calculator printed 56.19 B for a model of 72.29 B: real shapes count gate, up and down."""
    qwen = {
        "layers": 80,
        "hidden": 8192,
        "heads": 64,
        "kv_heads": 64,
        "head_dim": 128,
        "ffn": 24576,
        "vocab": 152064,
        "seq": 4096,
        "activation": "swiglu",
        "norm": "rmsnorm",
        "biases": "qkv",
    }
    result = predict({"model": qwen})
    assert result["params"]["total"] == 72_287_920_128
    assert sum(result["params"]["by_part"].values()) == 72_287_920_128
    two = count(from_dict({"model": {**qwen, "activation": "gelu", "positions": "rotary"}}).model)
    assert two.by_part["mlp"] * 3 == result["params"]["by_part"]["mlp"] * 2


def test_a03_zero_2_shards_gradients():
    """7 B parameters on 64 ranks: an estimator left 2 bytes of gradients whole, and gave 29.75 GB."""
    totals = [zero_state_bytes(7e9, dp=64, stage=stage).total for stage in (1, 2, 3)]
    assert totals == [29_312_500_000, 15_531_250_000, 1_750_000_000]
    with_copy = Accounting("with fp32 gradients", 2, 6, 12, "16- and 32-bit gradients", "the report")
    assert zero_state_bytes(7e9, dp=64, stage=2, accounting=with_copy).total == 15_968_750_000
    assert totals[0] - totals[1] == 2 * 7e9 * (1 - 1 / 64)


def test_a03_in_a_job():
    """From stage to stage one more term falls to a share, and no other changes."""
    tables = {"model": {**SMALL, "layers": 4}, "parallel": {"dp": 4}}
    held = [
        predict({**tables, "train": {"zero_stage": stage, "global_batch": 4}})["memory"]["stages"][0]
        for stage in range(4)
    ]
    for stage, names in (
        (1, ["optimizer"]),
        (2, ["optimizer", "grads"]),
        (3, ["optimizer", "grads", "params"]),
    ):
        for name in ("params", "grads", "optimizer"):
            share = held[stage][name] / held[0][name]
            assert share == pytest.approx(0.25 if name in names else 1, rel=1e-3)


def test_a05_logits_are_charged_to_the_last_stage():
    """8,192 tokens of 151,936 words: 4.64 GiB in fp32 that calculators forgot."""
    assert logits_bytes(8192, vocab=151936) == 4_978_638_848
    assert round(logits_bytes(8192, vocab=151936, chunk=1024) / 2**30, 2) == 0.58
    assert round(logits_bytes(8192, vocab=151936, tp=8) / 2**30, 2) == 0.58
    model = {"preset": "qwen2.5-1.5b", "seq": 8192, "heads": 8, "kv_heads": 8}
    for parallel, expected in (({"pp": 4}, 4_978_638_848), ({"pp": 4, "tp": 8}, 4_978_638_848 / 8)):
        found = stages_memory(from_dict({"model": model, "parallel": parallel}))
        assert [stage.logits for stage in found] == [0, 0, 0, expected]


@pytest.mark.parametrize(
    ("layers", "pp", "sizes"), [(30, 4, [8, 8, 7, 7]), (10, 3, [4, 3, 3]), (61, 4, [16, 15, 15, 15])]
)
def test_a08_no_layer_is_dropped(layers, pp, sizes):
    """30 layers on 4 stages built 28: here each is there once, in the plan, the planner and exports."""
    tables = {
        "model": {**SMALL, "layers": layers, "activation": "swiglu"},
        "parallel": {"pp": pp},
        "train": {"global_batch": pp, "zero_stage": 0},
        "hardware": {"gpu": "H100-SXM5"},
    }
    job = from_dict(tables)
    stages = predict(job)["layout"]["stages"]
    assert [stage["layers"] for stage in stages] == sizes
    assert sorted(layer for stage in stages for layer in stage["layer_ids"]) == list(range(layers))
    for found in plan(job, top=50).plans:
        parts = predict(found.job)["layout"]["stages"]
        assert sum(part["layers"] for part in parts) == layers
    with pytest.raises(JobError) as refusal:  # Megatron-LM takes equal stages alone, and says which
        export(job, to="megatron")
    (problem,) = refusal.value.problems
    assert problem.field == "parallel.pp"
    assert all(layers % valid == 0 for valid in problem.valid)
    titan = tomllib.loads(export(job, to="torchtitan").files["torchtitan.toml"])["parallelism"]
    assert titan["pipeline_parallel_layers_per_stage"] == max(sizes)
    assert titan["pipeline_parallel_first_stage_less_layers"] == 0


def test_a11_batches_divide_or_are_refused():
    """256 by 2 on 7 replicas left a rest; 8 processes in two stages are four replicas, not eight."""
    model = {"preset": "gpt2"}
    tables = {"model": model, "train": {"global_batch": 256, "micro_batch": 2}, "parallel": {"dp": 7}}
    (problem,) = validate(tables)
    assert (problem.field, problem.valid) == ("train.global_batch", (252, 266))
    for batch in problem.valid:
        assert validate({**tables, "train": {"global_batch": batch, "micro_batch": 2}}) == []
    with pytest.raises(ValueError, match="nearest valid: 252, 266"):
        gradient_accumulation(256, micro_batch=2, dp=7)
    job = from_dict(
        {
            "model": model,
            "train": {"global_batch": 256, "micro_batch": 4},
            "parallel": {"pp": 2},
            "hardware": {"n_gpus": 8},
        }
    )
    assert (job.parallel.dp, job.gradient_accumulation) == (4, 16)
    config = json.loads(export(job, to="deepspeed").files["deepspeed.json"])
    assert "train_batch_size" not in config
    assert config["gradient_accumulation_steps"] == 16


@pytest.mark.parametrize(("micro_batches", "bubble"), [(2, 0.60), (1, 0.75)])
def test_a13_fewer_micro_batches_than_stages(micro_batches, bubble):
    """1F1B hung on four stages with two micro-batches: the warm-up was not capped."""
    for name in ("gpipe", "1f1b"):
        table = build(name, stages=4, microbatches=micro_batches)
        check(table)
        lower(table)
        assert simulate(table, Costs(forward=1, backward_input=2)).bubble_fraction == pytest.approx(bubble)
        job = {
            "model": {**SMALL, "layers": 4},
            "train": {"global_batch": micro_batches},
            "parallel": {"pp": 4, "schedule": name},
        }
        assert predict(job)["bubble_fraction"] == pytest.approx(bubble)


def test_f01_1f1b_has_no_smaller_bubble_than_gpipe():
    """Eight stages, 32 micro-batches: 78 units and 7/39 idle for both; 1F1B holds less, that is all."""
    gpipe, one = (
        simulate(
            build(name, stages=8, microbatches=32), Costs(forward=1, backward_input=1, backward_weight=0)
        )
        for name in ("gpipe", "1f1b")
    )
    assert gpipe.makespan == one.makespan == 78
    assert gpipe.bubble_fraction == one.bubble_fraction == pytest.approx(7 / 39)
    assert gpipe.peak_in_flight == [32] * 8
    assert one.peak_in_flight == [8, 7, 6, 5, 4, 3, 2, 1]
    model = {**SMALL, "layers": 8}
    results = [
        predict({"model": model, "train": {"global_batch": 32}, "parallel": {"pp": 8, "schedule": name}})
        for name in ("gpipe", "1f1b")
    ]
    assert (
        results[0]["bubble_fraction"] == pytest.approx(results[1]["bubble_fraction"]) == pytest.approx(7 / 39)
    )
    first, second = ([stage["activations"] for stage in result["memory"]["stages"]] for result in results)
    assert all(a > b for a, b in zip(first, second, strict=True))
