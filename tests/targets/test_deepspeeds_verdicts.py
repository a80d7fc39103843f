"""pdt lint's verdict is DeepSpeed's own: every key that the installed DeepSpeed reads, with many values."""

import importlib
import json
import logging

import deepspeed
import hjson
import pytest
from deepspeed.runtime import config as runtime
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.utils import logger

from pdtlib.plan.lint import deepspeed_keys, lint_deepspeed
from pdtlib.plan.lint.deepspeed import ELSEWHERE

logger.setLevel(logging.CRITICAL)
BASE = {"train_micro_batch_size_per_gpu": 4}
VALUES = [True, False, 0, 1, 2, -1, 1.5, 1e9, "1", "1e9", "x", "yes", "auto", None, [], {}]
# A class for each strict section.
CLASSES = {
    "zero_optimization": "runtime.zero.config.DeepSpeedZeroConfig",
    "zero_optimization.offload_param": "runtime.zero.offload_config.DeepSpeedZeroOffloadParamConfig",
    "zero_optimization.offload_optimizer": "runtime.zero.offload_config.DeepSpeedZeroOffloadOptimizerConfig",
    "zero_optimization.leaf_module": "runtime.zero.leaf_module_config.DeepSpeedZeroLeafModuleConfig",
    "zero_optimization.zenflow": "runtime.zenflow.zenflow_config.ZenFlowConfig",
    "fp16": "runtime.precision_config.DeepSpeedFP16Config",
    "bf16": "runtime.precision_config.DeepSpeedBF16Config",
    "tensor_parallel": "runtime.tensor_parallel.config.TPTrainingConfig",
    "tensor_parallel.tensor_parallel": "runtime.tensor_parallel.config.TPConfig",
    "tensor_parallel.tp": "runtime.tensor_parallel.config.TPConfig",
    "hybrid_engine": "runtime.config.HybridEngineConfig",
    "compile": "compile.config.CompileConfig",
    "comms_logger": "comm.config.CommsLoggerConfig",
    "tensorboard": "monitor.config.TensorBoardConfig",
    "csv_monitor": "monitor.config.CSVConfig",
    "wandb": "monitor.config.WandbConfig",
    "comet": "monitor.config.CometConfig",
    "timers.throughput": "utils.config.DeepSpeedThroughputTimerConfig",
    "weight_quantization": "inference.config.WeightQuantConfig",
}
# Whether there is a GPU with direct storage is the machine's to answer, not the file's.
MACHINE = {("aio", "use_gds")}


class Recorded(dict):
    """A table that notes which keys are asked for."""

    def __init__(self, *tables):
        super().__init__(*tables)
        self.asked = set()

    def get(self, key, default=None):
        self.asked.add(key)
        return super().get(key, default)

    def __contains__(self, key):
        self.asked.add(key)
        return super().__contains__(key)

    def __getitem__(self, key):
        self.asked.add(key)
        return super().__getitem__(key)

    def keys(self):
        return self

    def __copy__(self):
        return self


def refusal(config):
    """Why DeepSpeed refuses a configuration; empty if it takes it."""
    try:
        DeepSpeedConfig(json.loads(json.dumps(config)))
    except Exception as error:  # DeepSpeed answers with assertions, type errors and its own
        return f"{type(error).__name__}: {error}"
    return ""


def rejected(config):
    """What the linter rejects of a configuration."""
    return [item for item in lint_deepspeed(json.dumps(config)) if item.verdict == "rejected"]


def nested(path, key, value):
    """A configuration with one key, in the section at ``path``; ZeRO's sections are at stage 3."""
    table = {key: value}
    for name in reversed(path.split(".")):
        table = {name: {"stage": 3, **table} if name == "zero_optimization" else table}
    return {**BASE, **table}


def differences(path, keys):
    found = []
    for key in keys:
        for value in VALUES:
            config = nested(path, key, value) if path else {**BASE, key: value}
            theirs, ours = refusal(config), rejected(config)
            if bool(theirs) != bool(ours) and (path, key) not in MACHINE:
                found.append((key, value, theirs[:100], [item.message for item in ours]))
    return found


def test_this_is_the_version_that_the_linter_speaks_of():
    assert deepspeed.__version__.startswith("0.19.")


def test_all_top_level_keys_are_known():
    """Keys that DeepSpeed asks for are ours, and ours are asked for."""
    table = Recorded({"train_batch_size": 1})
    DeepSpeedConfig(table)
    ours = set(deepspeed_keys.TOP) | set(deepspeed_keys.RENAMED)
    ours |= {name for name in deepspeed_keys.REMOVED if "." not in name}
    assert table.asked - ours == set()
    # Read only when there are several ranks, to find the number of data-parallel ones.
    assert ours - table.asked == {"sequence_parallel_size"}


def test_removed_keys():
    top = {name for name in deepspeed_keys.REMOVED if "." not in name}
    assert top == set(runtime._REMOVED_TOP_LEVEL_CONFIG_KEYS)
    zero = {name.partition(".")[2] for name in deepspeed_keys.REMOVED} - {""}
    assert zero == set(runtime._REMOVED_ZERO_CONFIG_KEYS)
    for key in top:
        assert refusal({**BASE, key: {}}), key
        assert rejected({**BASE, key: {}}), key


@pytest.mark.parametrize("path", deepspeed_keys.STRICT)
def test_strict_sections_have_the_classes_keys(path):
    module, _, name = CLASSES[path].rpartition(".")
    fields = getattr(importlib.import_module(f"deepspeed.{module}"), name).model_fields
    theirs = set(fields) | {field.alias for field in fields.values() if field.alias}
    ours = set(deepspeed_keys.STRICT[path])
    if path == "zero_optimization":
        assert {
            key for key, field in fields.items() if (field.json_schema_extra or {}).get("deprecated")
        } == (set(deepspeed_keys.ZERO_DEPRECATED))
        ours |= set(deepspeed_keys.ZERO_DEPRECATED)
    assert ours == theirs


@pytest.mark.parametrize("path", sorted(set(deepspeed_keys.LOOSE) - {"pipeline", "optimizer", "scheduler"}))
def test_loose_sections_have_the_keys_that_are_asked_for(path):
    table = Recorded({"enabled": True})
    DeepSpeedConfig({"train_batch_size": 1, path: table})
    asked = table.asked - ({"enabled"} - set(deepspeed_keys.LOOSE[path]))
    assert asked == set(deepspeed_keys.LOOSE[path])


def test_pipeline_has_the_usual_values_keys():
    assert set(deepspeed_keys.LOOSE["pipeline"]) == set(runtime.get_pipeline_config({}))


def test_verdicts_of_the_top_level():
    assert differences("", deepspeed_keys.TOP) == []


@pytest.mark.parametrize("path", deepspeed_keys.STRICT)
def test_verdicts_of_strict_sections(path):
    assert differences(path, [*deepspeed_keys.STRICT[path], "no_such_key"]) == []


@pytest.mark.parametrize("path", deepspeed_keys.LOOSE)
def test_verdicts_of_loose_sections(path):
    assert differences(path, [*deepspeed_keys.LOOSE[path], "no_such_key"]) == []


@pytest.mark.parametrize("stage", range(5))
def test_verdicts_of_zero_keys_at_every_stage(stage):
    for key in deepspeed_keys.ZERO:
        for value in (True, False, 1, "auto"):
            config = {**BASE, "zero_optimization": {"stage": stage, key: value}}
            assert bool(refusal(config)) == bool(rejected(config)), (key, value)


@pytest.mark.parametrize("master", [True, False])
@pytest.mark.parametrize("stage", range(4))
def test_verdicts_of_master_weights(stage, master):
    for name in ("fp16", "bf16"):
        config = {
            **BASE,
            "zero_optimization": {"stage": stage},
            name: {"enabled": True, f"{name}_master_weights_and_grads": master},
        }
        assert bool(refusal(config)) == bool(rejected(config))
    config["bf16"]["bf16_optimizer_states"] = True
    assert bool(refusal(config)) == bool(rejected(config))


@pytest.mark.parametrize(
    "sizes", [(8, 4, 2), (8, 4, 3), (8, None, 3), (8, 3, None), (None, None, 2), (1, 4, None)]
)
def test_verdicts_of_batch_sizes(sizes):
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    config = {name: size for name, size in zip(names, sizes, strict=True) if size is not None}
    assert bool(refusal(config)) == bool(rejected(config))


ARTICLE = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 8,
    "zero_optimization": {
        "stage": 3,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "sub_group_size": "1e9",
        "reduce_bucket_size": "5e8",
        "allgather_bucket_size": "5e8",
        "cpu_offload": False,
    },
    "tensor_parallel": {"size": 8},
    "pipeline_parallel": {"size": 4, "num_stages": 4},
    "pipeline_type": "1f1b_interleaved",
    "num_chunks": 2,
}


def test_the_articles_file_a_key_at_a_time():
    """Each key of the article's file alone: DeepSpeed takes it exactly where the linter doesn't reject it."""
    for key in ("sub_group_size", "reduce_bucket_size", "allgather_bucket_size", "cpu_offload"):
        config = {**BASE, "zero_optimization": {"stage": 3, key: ARTICLE["zero_optimization"][key]}}
        assert bool(refusal(config)) == bool(rejected(config)) == (key != "cpu_offload")
    assert "extra_forbidden" in refusal({**BASE, "tensor_parallel": ARTICLE["tensor_parallel"]})
    assert rejected({**BASE, "tensor_parallel": ARTICLE["tensor_parallel"]})
    assert refusal(ARTICLE)


def test_the_articles_unknown_sections_change_nothing():
    """Sections that the linter calls unknown leave DeepSpeed as it is without them."""
    bare = vars(DeepSpeedConfig(dict(BASE)))
    for key in ELSEWHERE:
        with_key = vars(DeepSpeedConfig({**BASE, key: ARTICLE.get(key, {"size": 4})}))
        for name, value in bare.items():
            if isinstance(value, int | float | str | dict | type(None)) and name != "_param_dict":
                assert with_key[name] == value, (key, name)


def test_the_articles_wrapper_and_yaml(tmp_path):
    """Within a "deepspeed" section no batch is found, and DeepSpeed does not read the YAML itself."""
    assert "needs to be provided" in refusal({"deepspeed": ARTICLE})
    text = "deepspeed:\n  train_micro_batch_size_per_gpu: 4\n  zero_optimization:\n    stage: 3\n"
    path = tmp_path / "ds.yaml"
    path.write_text(text)
    try:
        read = hjson.loads(text)
    except hjson.HjsonDecodeError:
        read = None
    assert read is None or "train_micro_batch_size_per_gpu" not in read
    with pytest.raises(Exception, match=r"."):
        DeepSpeedConfig(str(path))
    assert any(item.verdict == "rejected" for item in lint_deepspeed(text))


def test_the_articles_keys_as_numbers_are_taken():
    zero = {"stage": 3, "sub_group_size": 1e9, "reduce_bucket_size": 5e8, "allgather_bucket_size": 5e8}
    assert refusal({**BASE, "zero_optimization": zero}) == ""
    assert rejected({**BASE, "zero_optimization": zero}) == []
