"""Exports: what each target reads back, what it refuses, and that nothing is lost on the way."""

import json
import tomllib

import pytest
from hypothesis import given, settings
from strategies import jobs

from pdtlib.cli import app
from pdtlib.plan.export import TARGETS, export
from pdtlib.plan.job import JobError, from_dict, to_toml

LLAMA = {"model": {"preset": "llama3-8b"}, "train": {"global_batch": 64, "micro_batch": 2}}


def job_with(train=None, parallel=None, model=None):
    return from_dict(
        {
            "model": {**LLAMA["model"], **(model or {})},
            "train": {**LLAMA["train"], **(train or {})},
            "parallel": parallel or {},
        }
    )


def deepspeed(job):
    return json.loads(export(job, to="deepspeed").files["deepspeed.json"])


def megatron(job):
    flags = {}
    for line in export(job, to="megatron").files["megatron.args"].splitlines():
        name, _, value = line.removeprefix("--").partition(" ")
        flags[name] = value
    return flags


def torchtitan(job):
    return tomllib.loads(export(job, to="torchtitan").files["torchtitan.toml"])


def reasons(job, to):
    try:
        export(job, to=to)
    except JobError as error:
        return error.problems
    return []


def refused(job, to):
    return {problem.field for problem in reasons(job, to)}


@pytest.mark.parametrize("stage", range(4))
def test_deepspeed(stage):
    """The batch stays derivable: micro-batch and accumulation are given, and no total that could disagree."""
    job = job_with({"zero_stage": stage}, {"dp": 4})
    config = deepspeed(job)
    assert config["zero_optimization"]["stage"] == stage
    assert "train_batch_size" not in config
    product = config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"] * 4
    assert product == job.train.global_batch
    assert config["bf16"] == {"enabled": True}
    assert config["gradient_clipping"] == 1.0


def test_deepspeed_pipeline_counts_replicas_not_processes():
    """Field report: 8 processes in two stages; 256 sequences by 4 are 16 micro-batches on 4 replicas."""
    job = job_with({"global_batch": 256, "micro_batch": 4}, {"dp": 4, "pp": 2})
    config = deepspeed(job)
    assert config["gradient_accumulation_steps"] == 16
    assert config["pipeline"]["stages"] == 2
    assert any("num_stages=2" in note for note in export(job, to="deepspeed").notes)


def test_deepspeed_tensor_parallelism_has_its_own_key():
    assert deepspeed(job_with(parallel={"tp": 8}))["tensor_parallel"] == {"autotp_size": 8}


def test_megatron():
    job = job_with(
        {"zero_stage": 1, "grad_precision": "fp32", "sequence_parallel": True, "recompute": "full"},
        {"dp": 2, "tp": 4, "pp": 4, "vpp": 2, "cp": 2},
    )
    flags = megatron(job)
    assert flags["tensor-model-parallel-size"] == "4"
    assert flags["pipeline-model-parallel-size"] == "4"
    assert flags["num-virtual-stages-per-pipeline-rank"] == "2"
    assert flags["context-parallel-size"] == "2"
    assert flags["global-batch-size"] == "64"
    assert flags["num-query-groups"] == "8"
    assert {"swiglu", "bf16", "sequence-parallel", "use-distributed-optimizer"} <= set(flags)
    assert "accumulate-allreduce-grads-in-fp32" in flags
    assert flags["recompute-granularity"] == "full"


def test_megatron_gpt_style_and_experts():
    gpt = from_dict({"model": {"preset": "gpt2"}, "train": {"precision": "fp16"}})
    flags = megatron(gpt)
    assert flags["position-embedding-type"] == "learned_absolute"
    assert flags["normalization"] == "LayerNorm"
    assert "fp16" in flags
    assert not {"swiglu", "disable-bias-linear", "untie-embeddings-and-output-weights"} & set(flags)
    moe = from_dict({"model": {"preset": "mixtral-8x7b"}, "parallel": {"dp": 8, "ep": 8}})
    assert megatron(moe)["num-experts"] == "8"
    assert megatron(moe)["expert-model-parallel-size"] == "8"


@pytest.mark.parametrize(
    ("stage", "reshard", "shard", "when"),
    [
        (0, True, 1, "never"),
        (2, True, 4, "never"),
        (3, True, 4, "always"),
        (3, False, 4, "never"),
    ],
)
def test_torchtitan(stage, reshard, shard, when):
    table = torchtitan(job_with({"zero_stage": stage, "reshard_after_forward": reshard}, {"dp": 4, "tp": 2}))
    degrees = table["parallelism"]
    assert degrees["data_parallel_shard_degree"] == shard
    assert degrees["data_parallel_shard_degree"] * degrees["data_parallel_replicate_degree"] == 4
    assert degrees["fsdp_reshard_after_forward"] == when
    assert degrees["tensor_parallel_degree"] == 2
    assert table["training"]["local_batch_size"] == 2
    assert table["training"]["global_batch_size"] == 64


def test_torchtitan_pipelines_take_all_micro_batches_at_once():
    table = torchtitan(job_with(parallel={"dp": 2, "pp": 4, "vpp": 2}))
    assert table["training"]["local_batch_size"] == 32
    assert table["parallelism"]["pipeline_parallel_microbatch_size"] == 2
    assert table["parallelism"]["pipeline_parallel_schedule"] == "Interleaved1F1B"
    assert table["parallelism"]["pipeline_parallel_layers_per_stage"] == 4


def test_no_clipping():
    """0 means none in a job, in DeepSpeed and in Megatron-LM; torchtitan would scale every gradient to 0."""
    job = job_with({"clip_grad_norm": 0.0})
    assert deepspeed(job)["gradient_clipping"] == 0
    assert float(megatron(job)["clip-grad"]) == 0
    assert torchtitan(job)["training"]["max_norm"] == float("inf")


@pytest.mark.parametrize(("precision", "grads"), [("bf16", "same"), ("bf16", "fp32"), ("fp16", "fp32")])
def test_megatrons_gradients_have_the_jobs_precision(precision, grads):
    """Megatron-LM turns fp32 gradients on for bf16 by itself, so that bf16 ones must be asked for."""
    flags = megatron(job_with({"precision": precision, "grad_precision": grads}))
    assert ("accumulate-allreduce-grads-in-fp32" in flags) == (grads == "fp32")
    assert ("grad-reduce-in-bf16" in flags) == (precision == "bf16" and grads == "same")


def test_megatrons_fully_sharded_parallelism_has_one_checkpoint_format():
    assert megatron(job_with({"zero_stage": 3}, {"dp": 2}))["ckpt-format"] == "fsdp_dtensor"
    assert "ckpt-format" not in megatron(job_with({"zero_stage": 1}, {"dp": 2}))


def test_torchtitans_options_and_toml_agree():
    files = export(job_with(parallel={"dp": 4}), to="torchtitan").files
    table = tomllib.loads(files["torchtitan.toml"])
    for line in files["torchtitan.args"].splitlines():
        path, _, value = line.removeprefix("--").partition(" ")
        section, _, name = path.partition(".")
        if value:
            assert str(table[section][name]) == value
        else:
            assert table[section][name.removeprefix("no_")] is not name.startswith("no_")


@pytest.mark.parametrize(
    ("to", "train", "parallel", "model", "field"),
    [
        ("deepspeed", {"zero_stage": 3}, {"pp": 2}, {}, "train.zero_stage"),
        ("deepspeed", {"zero_stage": 2}, {"pp": 2}, {}, "train.zero_stage"),
        ("deepspeed", {}, {"pp": 2, "schedule": "gpipe"}, {}, "parallel.schedule"),
        ("deepspeed", {}, {"pp": 2, "vpp": 2}, {}, "parallel.schedule"),
        ("deepspeed", {}, {"cp": 2}, {}, "parallel.context"),
        ("megatron", {}, {"pp": 3}, {}, "parallel.pp"),
        ("megatron", {}, {"pp": 4, "schedule": "zb-h1"}, {}, "parallel.schedule"),
        ("megatron", {"zero_stage": 3}, {"pp": 2, "dp": 2}, {}, "train.zero_stage"),
        ("megatron", {"global_batch": 12}, {"pp": 4, "vpp": 2}, {}, "train.global_batch"),
        ("deepspeed", {"grad_precision": "fp32"}, {}, {}, "train.grad_precision"),
        ("megatron", {}, {"cp": 2, "context": "ulysses"}, {"seq": 4098}, "model.seq"),
        ("megatron", {"precision": "fp32", "flash_attention": True}, {}, {}, "train.flash_attention"),
        ("megatron", {"steps": 10, "warmup_steps": 10}, {}, {}, "train.warmup_steps"),
        ("torchtitan", {"global_batch": 22}, {"pp": 2, "vpp": 2}, {}, "train.global_batch"),
        ("torchtitan", {"zero_stage": 1}, {"dp": 2}, {}, "train.zero_stage"),
        ("torchtitan", {"precision": "fp16"}, {}, {}, "train.precision"),
        ("torchtitan", {"global_batch": 4}, {"pp": 4}, {}, "train.global_batch"),
        ("torchtitan", {}, {"pp": 2, "schedule": "zb-h2"}, {}, "parallel.schedule"),
        ("torchtitan", {}, {"cp": 2, "context": "ulysses"}, {}, "parallel.context"),
        ("torchtitan", {}, {}, {"preset": "gpt2"}, "model"),
    ],
)
def test_each_target_refuses_what_it_cannot_do(to, train, parallel, model, field):
    assert field in refused(job_with(train, parallel, model), to)


def test_the_articles_70b_row_is_refused_by_deepspeed():
    """128 GPUs as tp 8, pp 4, dp 4 with ZeRO-3: DeepSpeed refuses it, and ZeRO-1 is what it takes."""
    tables = {
        "model": {"preset": "llama2-70b"},
        "train": {"global_batch": 128, "micro_batch": 4, "zero_stage": 3},
        "parallel": {"dp": 4, "tp": 8, "pp": 4},
    }
    assert refused(from_dict(tables), "deepspeed") == {"train.zero_stage"}
    tables["train"]["zero_stage"] = 1
    config = deepspeed(from_dict(tables))
    assert config["gradient_accumulation_steps"] == 8
    assert "tensor_parallel" not in config  # with a pipeline, tp is the model's own


@settings(max_examples=80, deadline=None)
@given(jobs())
def test_batch_and_degrees_survive_every_export(data):
    """A job is refused with a field and a reason, or arrives with its batch, degrees and stage."""
    job = from_dict(data)
    for to in TARGETS:
        problems = reasons(job, to)
        assert all(problem.field and problem.message for problem in problems)
        if problems:
            continue
        if to == "deepspeed":
            config = deepspeed(job)
            batch = config["train_micro_batch_size_per_gpu"] * config["gradient_accumulation_steps"]
            assert batch * job.parallel.dp == job.train.global_batch
            assert config["zero_optimization"]["stage"] == job.train.zero_stage
        elif to == "megatron":
            flags = megatron(job)
            assert int(flags["global-batch-size"]) == job.train.global_batch
            assert int(flags["pipeline-model-parallel-size"]) == job.parallel.pp
            assert job.model.layers % (job.parallel.pp * job.parallel.vpp) == 0
            assert ("use-distributed-optimizer" in flags) == (job.train.zero_stage > 0)
        else:
            table = torchtitan(job)
            degrees = table["parallelism"]
            assert degrees["pipeline_parallel_degree"] == job.parallel.pp
            shards = degrees["data_parallel_shard_degree"] * degrees["data_parallel_replicate_degree"]
            assert shards == job.parallel.dp
            local = table["training"]["local_batch_size"]
            assert table["training"]["global_batch_size"] % (local * shards) == 0


def pdt(capsys, *words):
    with pytest.raises(SystemExit) as caught:
        app.main([str(word) for word in words])
    out = capsys.readouterr()
    return caught.value.code or 0, out.out, out.err


def test_pdt_export(capsys, tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(to_toml(job_with({"zero_stage": 1}, {"dp": 2})))
    code, out, _ = pdt(capsys, "export", path, "--to", "deepspeed", "--out", tmp_path / "ds", "--json")
    assert code == 0
    assert json.loads(out)["files"] == [str(tmp_path / "ds" / "deepspeed.json")]
    assert json.loads((tmp_path / "ds" / "deepspeed.json").read_text())["zero_optimization"]["stage"] == 1
    code, out, err = pdt(capsys, "export", path, "--to", "torchtitan", "--out", tmp_path, "--json")
    assert code == 2
    assert json.loads(out)["problems"][0]["field"] == "train.zero_stage"
    assert "torchtitan" in err
    assert pdt(capsys, "export", path, "--to", "nemo", "--out", tmp_path)[0] == 2


def test_megatron_recomputes_blocks_of_layers():
    """A number of layers goes by blocks: the first so many of every chunk, as in our own engine."""
    whole, part = (
        megatron(job_with({"recompute": "full", **some}, {"pp": 2})) for some in ({}, {"recompute_layers": 5})
    )
    assert (whole["recompute-method"], whole["recompute-num-layers"]) == ("uniform", "1")
    assert (part["recompute-method"], part["recompute-num-layers"]) == ("block", "5")


@pytest.mark.parametrize(("to", "kind"), [("megatron", "selective"), ("torchtitan", "full")])
def test_targets_without_partial_recomputation_refuse_it(to, kind):
    job = job_with({"recompute": kind, "recompute_layers": 5})
    assert refused(job, to) == {"train.recompute_layers"}
    assert not refused(job_with({"recompute": kind, "recompute_layers": 32}), to)


def test_rotary_base_and_epsilon_reach_the_target():
    flags = megatron(job_with(model={"norm_eps": 1e-6}))
    assert (flags["rotary-base"], flags["norm-epsilon"]) == ("500000", "1e-06")
    assert "rotary-base" not in megatron(from_dict({"model": {"preset": "gpt2"}}))
    assert refused(job_with(model={"rope_theta": 10000.5}), "megatron") == {"model.rope_theta"}
    notes = export(job_with(), to="torchtitan").notes
    assert any("theta, here 500000" in note and "eps, here 1e-05" in note for note in notes)


def test_deepspeed_says_which_layers_recompute():
    notes = export(job_with({"recompute": "full", "recompute_layers": 5}), to="deepspeed").notes
    assert any("first 5 layers" in note for note in notes)
