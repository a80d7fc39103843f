"""Weights go to Hugging Face's transformers and come from there: the same logits on both sides."""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from pdtlib.engine.dist import spawn
from pdtlib.engine.models import Transformer
from pdtlib.engine.training.checks import check
from pdtlib.engine.training.hugging_face import export_run, read
from pdtlib.engine.training.loop import train
from pdtlib.engine.training.options import Options

JOB = """
[model]
layers = 4
hidden = 32
heads = 4
kv_heads = 2
ffn = 48
vocab = 257
seq = 16
activation = "swiglu"
rope_theta = 500000.0
norm_eps = 1e-6
[train]
global_batch = 8
precision = "fp32"
learning_rate = 1e-2
steps = 4
sequence_parallel = true
zero_stage = 1
[parallel]
dp = 2
tp = 2
pp = 2
vpp = 2
"""
FAMILIES = {
    "llama": {"num_key_value_heads": 2, "rope_theta": 500_000.0},
    "llama 3.1": {
        "num_key_value_heads": 2,
        "rope_scaling": {
            "rope_type": "llama3",
            "rope_theta": 10_000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 256,
        },
    },
    "qwen2": {"num_key_value_heads": 4, "tie_word_embeddings": True},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 10},
}
TOKENS = torch.randint(200, (2, 16), generator=torch.Generator().manual_seed(0))


def train_in_three_dimensions(folder: Path) -> None:
    options = Options(job=folder / "job.toml", out=folder / "run")
    train(check(options, world_size=8, local_world_size=8))


def theirs_of(folder: Path) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        return model.eval()(TOKENS).logits


def ours_of(folder: Path) -> torch.Tensor:
    model, weights = read(folder)
    net = Transformer(model)
    net.load_state_dict(weights)
    with torch.no_grad():
        return net.eval()(TOKENS)


def test_trained_in_three_dimensions_and_exported(tmp_path: Path) -> None:
    """dp 2 x tp 2 x pp 2 with interleaving, sequence parallelism and ZeRO-1, and an uneven vocabulary."""
    (tmp_path / "job.toml").write_text(JOB)
    spawn(train_in_three_dimensions, 8, tmp_path, timeout_s=400, group_timeout_s=120)
    export_run(tmp_path / "run", to=tmp_path / "out")
    theirs = theirs_of(tmp_path / "out")
    torch.testing.assert_close(theirs, ours_of(tmp_path / "out"), rtol=0, atol=1e-4)
    assert theirs.std() > 0.05, "it is no fresh model"


@pytest.mark.parametrize("family", FAMILIES)
def test_theirs_come_in(family: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    config = AutoConfig.for_model(
        family.partition(" ")[0],
        vocab_size=257,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=16,
        bos_token_id=None,
        eos_token_id=None,
        **FAMILIES[family],
    )
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for param in model.parameters():
            param.add_(0.1 * torch.randn_like(param))
    model.save_pretrained(tmp_path)
    torch.testing.assert_close(ours_of(tmp_path), theirs_of(tmp_path), rtol=0, atol=1e-4)
