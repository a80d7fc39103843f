"""The DeepSpeed linter: its verdicts are those of DeepSpeed's own configuration class."""

import json

import pytest

from pdtlib.cli import app
from pdtlib.plan.export import export
from pdtlib.plan.job import from_dict
from pdtlib.plan.lint import lint_deepspeed

BASE = {"train_micro_batch_size_per_gpu": 4}

# What deepspeed.runtime.config.DeepSpeedConfig of 0.19.8 answered: True where it accepted the file.
ANSWERS = [
    ({"tensor_parallel": {"size": 8}}, False),
    ({"tensor_parallel": {"autotp_size": 8}}, True),
    ({"pipeline_parallel": {"size": 4}}, True),
    ({"zero_optimization": {"stage": 3, "cpu_offload": False}}, True),
    ({"zero_optimization": {"stage": 3, "sub_group_size": "1e9"}}, False),
    ({"zero_optimization": {"stage": 3, "sub_group_size": "100"}}, True),
    ({"zero_optimization": {"stage": 3, "reduce_bucket_size": 5e8}}, True),
    ({"zero_optimization": {"stage": 3, "reduce_bucket_size": "5e8"}}, False),
    ({"zero_optimization": {"reduce_bucket_size": 0}}, False),
    ({"zero_optimization": True}, True),
    ({"zero_optimization": {"stage": 4}}, False),
    ({"zero_optimization": {"stage": "3"}}, True),
    ({"zero_optimization": {"stage": 3.0}}, True),
    ({"zero_optimization": {"stage": 1, "overlap_comm": "yes"}}, True),
    ({"zero_optimization": {"stage": 1, "zero_foo": 1}}, False),
    ({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "gpu"}}}, False),
    ({"zero_optimization": {"stage": 2, "compute_grad_norm": False}}, True),
    ({"zero_optimization": {"stage": 3, "compute_grad_norm": False}}, False),
    ({"bf16": {"enabled": True}, "fp16": {"enabled": True}}, False),
    ({"bf16": {"enabled": "true"}}, True),
    ({"fp16": True}, False),
    ({"amp": {}}, False),
    ({"gradient_clipping": "1.0"}, True),
    ({"train_batch_size": "8"}, False),
    ({"pipeline": {"stagess": 2}}, True),
    ({"steps_per_print": 1.5}, True),
    ({"gradient_accumulation_steps": 2.0}, True),
    ({"optimizer": {"type": "AdamW", "params": {"lr": "1e-4"}}}, True),
]

ARTICLE = """\
deepspeed:
  train_micro_batch_size_per_gpu: 4
  gradient_accumulation_steps: 8
  zero_optimization:
    stage: 3
    overlap_comm: true
    contiguous_gradients: true
    sub_group_size: 1e9
    reduce_bucket_size: 5e8
    allgather_bucket_size: 5e8
    cpu_offload: false  # slow
  tensor_parallel:
    size: 8
  pipeline_parallel:
    size: 4
    num_stages: 4
  pipeline_type: "1f1b_interleaved"
  num_chunks: 2
"""


def verdicts(config):
    text = config if isinstance(config, str) else json.dumps(config)
    return {item.key: item.verdict for item in lint_deepspeed(text)}


@pytest.mark.parametrize(("extra", "accepted"), ANSWERS, ids=lambda value: json.dumps(value)[:60])
def test_verdicts_equal_deepspeeds_own(extra, accepted):
    found = lint_deepspeed(json.dumps({**BASE, **extra}))
    rejected = [item for item in found if item.verdict == "rejected"]
    assert (not rejected) == accepted, rejected


def test_the_articles_file():
    """YAML with a wrapper, three texts for numbers, a deprecated key, a wrong one and three unknown."""
    found = verdicts(ARTICLE)
    assert lint_deepspeed(ARTICLE)[0].verdict == "rejected"  # DeepSpeed reads JSON
    assert found["deepspeed"] == "unknown"
    assert found["train_micro_batch_size_per_gpu"] == found["gradient_accumulation_steps"] == "ok"
    for key in ("stage", "overlap_comm", "contiguous_gradients"):
        assert found[f"zero_optimization.{key}"] == "ok"
    for key in ("sub_group_size", "reduce_bucket_size", "allgather_bucket_size"):
        assert found[f"zero_optimization.{key}"] == "rejected"  # YAML reads 5e8 as a text
    assert found["zero_optimization.cpu_offload"] == "deprecated"
    assert found["tensor_parallel.size"] == "rejected"
    for key in ("pipeline_parallel", "pipeline_type", "num_chunks"):
        assert found[key] == "unknown"


def test_the_articles_keys_as_json():
    """With numbers as numbers: the all-gather bucket is known, but stage 3 does not read it."""
    zero = {"stage": 3, "sub_group_size": 1e9, "reduce_bucket_size": 5e8, "allgather_bucket_size": 5e8}
    found = verdicts({**BASE, "zero_optimization": zero})
    assert found["zero_optimization.sub_group_size"] == "ok"
    assert found["zero_optimization.reduce_bucket_size"] == "ok"
    assert found["zero_optimization.allgather_bucket_size"] == "ignored"
    second = verdicts({**BASE, "zero_optimization": {**zero, "stage": 2}})
    assert second["zero_optimization.allgather_bucket_size"] == "ok"
    assert second["zero_optimization.sub_group_size"] == "ignored"


def test_messages_say_what_to_write_instead():
    texts = {item.key: item.message for item in lint_deepspeed(ARTICLE)}
    assert "autotp_size" in texts["tensor_parallel.size"]
    assert "offload_optimizer" in texts["zero_optimization.cpu_offload"]
    assert "PipelineModule" in texts["pipeline_parallel"]
    near = {item.key: item.message for item in lint_deepspeed('{"train_batch_sise": 8}')}
    assert "train_batch_size" in near["train_batch_sise"]


@pytest.mark.parametrize(
    ("config", "key", "verdict"),
    [
        ({}, "", "rejected"),
        ({"train_batch_size": 30, **BASE, "gradient_accumulation_steps": 4}, "train_batch_size", "rejected"),
        ({"train_batch_size": 32, **BASE, "gradient_accumulation_steps": 4}, "train_batch_size", "ok"),
        ({**BASE, "bfloat16": {"enabled": True}}, "bfloat16", "deprecated"),
        (
            {**BASE, "pipeline": {"stages": 4}, "zero_optimization": {"stage": 3}},
            "zero_optimization.stage",
            "rejected",
        ),
        (
            {**BASE, "zero_optimization": {"mics_shard_size": 4}},
            "zero_optimization.mics_shard_size",
            "rejected",
        ),
    ],
)
def test_the_configuration_as_a_whole(config, key, verdict):
    found = [item.verdict for item in lint_deepspeed(json.dumps(config)) if item.key == key]
    assert verdict in found


def test_deep_nesting_is_refused():
    assert verdicts("[" * 100_000) == {"": "rejected"}


def test_texts_that_are_no_configuration():
    assert verdicts("[1]") == {"": "rejected"}
    assert verdicts("- a\n- b\n") == {"": "rejected"}
    assert "duplicate" in lint_deepspeed('{"steps_per_print": 1, "steps_per_print": 2}')[0].message


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32"])
def test_what_pdt_exports_has_no_bad_key(stage, precision):
    job = from_dict(
        {
            "model": {"preset": "llama3-8b"},
            "train": {
                "global_batch": 64,
                "zero_stage": stage,
                "precision": precision,
                "grad_precision": "fp32" if stage else "same",
            },
            "parallel": {"dp": 4, "tp": 2},
        }
    )
    assert set(verdicts(export(job, to="deepspeed").files["deepspeed.json"]).values()) == {"ok"}


def test_pdt_lint(capsys, tmp_path):
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({**BASE, "tensor_parallel": {"size": 8}}))

    def pdt(*words):
        with pytest.raises(SystemExit) as caught:
            app.main([str(word) for word in words])
        out = capsys.readouterr()
        return caught.value.code or 0, out.out, out.err

    code, out, _ = pdt("lint", path, "--for", "deepspeed", "--json")
    assert code == 1
    rows = {row["key"]: row["verdict"] for row in json.loads(out)}
    assert rows["tensor_parallel.size"] == "rejected"
    path.write_text(json.dumps({**BASE, "bf16": {"enabled": True}}))
    code, out, _ = pdt("lint", path, "--for", "deepspeed")
    assert code == 0
    assert "bf16.enabled" in out
    assert pdt("lint", path, "--for", "megatron")[0] == 2
    assert pdt("lint", tmp_path / "none", "--for", "deepspeed")[0] == 2
