"""Safetensors under Hugging Face's names: the same logits as a Llama written from their conventions."""

import json
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from launching import train_on, write_job
from safetensors.torch import load_file, save_file
from torch import Tensor

from pdtlib.engine.data import Batches, Corpus
from pdtlib.engine.data_parallel import data_parallel
from pdtlib.engine.loss import token_loss_sum
from pdtlib.engine.mesh import Group
from pdtlib.engine.models import Transformer
from pdtlib.engine.optimizer import ShardedAdamW
from pdtlib.engine.training.hugging_face import (
    begin_run,
    config_of,
    export_run,
    model_of,
    read,
    their_name,
    write,
)
from pdtlib.engine.training.run_dir import begin
from pdtlib.engine.training.saver import save_checkpoint
from pdtlib.plan.job import Job, load, replace
from pdtlib.plan.params import tensors
from pdtlib.plan.spec import Model, RopeScaling

SHAPE = {"layers": 2, "hidden": 24, "heads": 4, "ffn": 40, "vocab": 61, "seq": 12, "activation": "swiglu"}
RUN = """
[model]
layers = 2
hidden = 24
heads = 4
kv_heads = 2
ffn = 40
vocab = 256
seq = 12
activation = "swiglu"
[train]
global_batch = 4
precision = "fp32"
"""
# Of three waves a head the first stays as it is, the second is stretched a little, the third in full.
SCALING = RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_seq=256)
MODELS = {
    "llama": Model(**SHAPE, kv_heads=2),
    "llama-3": Model(**SHAPE, kv_heads=2, rope_theta=500_000.0, norm_eps=1e-6),
    "llama-3.1": Model(**SHAPE, kv_heads=2, rope_scaling=SCALING),
    "llama-biases": Model(**SHAPE, biases="all"),
    "qwen2": Model(**SHAPE, kv_heads=1, biases="qkv", tied_embeddings=True),
    "qwen3": Model(**SHAPE, kv_heads=2, head_dim=10, qk_norm=True),
}


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def stretched(rate: float, scaling: dict[str, float]) -> float:
    """Llama 3.1's rule, by wavelengths (the reference code of its model card)."""
    length, original = 2 * math.pi / rate, scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    if length < original / high:
        return rate
    if length > original / low:
        return rate / scaling["factor"]
    smooth = (original / length - low) / (high - low)
    return (1 - smooth) * rate / scaling["factor"] + smooth * rate


def reference(config: dict[str, object], w: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """A Llama, Qwen2 or Qwen3 from config.json and the file's tensors, in none of our code."""
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    dim, seq, eps = config["head_dim"], tokens.shape[1], config["rms_norm_eps"]
    rates = 1.0 / config["rope_theta"] ** (torch.arange(0, dim, 2).double() / dim)
    if "rope_scaling" in config:
        rates = torch.tensor([stretched(float(rate), config["rope_scaling"]) for rate in rates]).double()
    angles = torch.cat([torch.outer(torch.arange(seq).double(), rates)] * 2, dim=-1)

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))

    def turn(x: Tensor) -> Tensor:
        rotated = torch.cat((-x[..., dim // 2 :], x[..., : dim // 2]), dim=-1)
        return x * angles.cos() + rotated * angles.sin()

    x = w["model.embed_tokens.weight"][tokens]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        y = norm(x, w[f"{at}.input_layernorm.weight"], eps)
        q, k, v = (
            linear(y, f"{at}.self_attn.{name}_proj").unflatten(-1, (-1, dim)).transpose(1, 2)
            for name in "qkv"
        )
        if f"{at}.self_attn.q_norm.weight" in w:
            q = norm(q, w[f"{at}.self_attn.q_norm.weight"], eps)
            k = norm(k, w[f"{at}.self_attn.k_norm.weight"], eps)
        q, k = turn(q), turn(k)
        out = []
        for head in range(heads):
            group = head // (heads // groups)
            scores = q[:, head] @ k[:, group].mT / dim**0.5
            scores = scores + torch.full((seq, seq), float("-inf")).triu(1)
            out.append(scores.softmax(-1) @ v[:, group])
        x = x + linear(torch.cat(out, dim=-1), f"{at}.self_attn.o_proj")
        y = norm(x, w[f"{at}.post_attention_layernorm.weight"], eps)
        gated = F.silu(linear(y, f"{at}.mlp.gate_proj")) * linear(y, f"{at}.mlp.up_proj")
        x = x + linear(gated, f"{at}.mlp.down_proj")
    x = norm(x, w["model.norm.weight"], eps)
    head = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
    return F.linear(x, w[head])


def trained(model: Model) -> Transformer:
    """Weights away from their start, so that no norm is 1 and no bias 0."""
    net = Transformer(model)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.1)
    return net


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_the_reference(name: str, tmp_path: Path) -> None:
    net = trained(MODELS[name])
    weights = {key: value.detach() for key, value in net.named_parameters()}
    write(tmp_path, model=MODELS[name], weights=weights)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == name.partition("-")[0]
    file = {key: value.double() for key, value in load_file(tmp_path / "model.safetensors").items()}
    tokens = torch.randint(61, (2, 12), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(net.double()(tokens), reference(config, file, tokens), rtol=1e-5, atol=1e-6)

    model, back = read(tmp_path)
    assert tensors(model) == tensors(MODELS[name])
    assert model == MODELS[name]
    assert all(torch.equal(back[key], weights[key]) for key in weights)


def test_a_run_is_exported_from_its_last_checkpoint(tmp_path: Path) -> None:
    net = trained(MODELS["llama"])
    weights = {name: value.detach().clone() for name, value in net.named_parameters()}
    begin(tmp_path / "run", job=Job(model=MODELS["llama"]), resume_step=None)
    save_checkpoint(tmp_path / "run", ShardedAdamW(data_parallel(net, Group.alone(), stage=0)), step=1)
    export_run(tmp_path / "run", to=tmp_path / "out")
    _, back = read(tmp_path / "out")
    assert all(torch.equal(back[name], weights[name]) for name in weights)
    begin(tmp_path / "new", job=Job(model=MODELS["llama"]), resume_step=None)
    with pytest.raises(ValueError, match="has no checkpoint"):
        export_run(tmp_path / "new", to=tmp_path / "none")


def test_weights_that_come_in_are_trained_on_in_any_layout(tmp_path: Path) -> None:
    """The first loss of tp 2 x pp 2 is that of the weights that were read."""
    job = replace(load(write_job(tmp_path, RUN)), {"model.vocab": 257})
    net = trained(job.model)
    write(tmp_path / "theirs", model=job.model, weights=dict(net.named_parameters()))
    out = tmp_path / "out"
    begin_run(out, job=job, weights_from=tmp_path / "theirs")
    changes = ("model.vocab=257", "parallel.tp=2", "parallel.pp=2")
    found = train_on(4, tmp_path / "job.toml", out, steps=2, resume=True, changes=changes)
    batches = Batches(Corpus(vocab=257), seq=job.model.seq, global_batch=job.train.global_batch, seed=0)
    tokens, targets = batches.take(0, first=0, count=job.train.global_batch)
    expected = token_loss_sum(net(tokens), targets) / targets.numel()
    assert [line["step"] for line in found] == [0, 1]
    assert found[0]["loss"] == pytest.approx(float(expected.detach()), abs=1e-5)
    with pytest.raises(ValueError, match="holds another model than the job"):
        begin_run(out, job=replace(job, {"model.rope_theta": 1e5}), weights_from=tmp_path / "theirs")


def test_names_are_theirs_for_every_tensor() -> None:
    theirs = [their_name(spec.name) for spec in tensors(MODELS["llama"])]
    assert theirs[:3] == [
        "model.embed_tokens.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.self_attn.q_proj.weight",
    ]
    assert theirs[-2:] == ["model.norm.weight", "lm_head.weight"]
    assert len(set(theirs)) == len(theirs)


def test_what_has_no_counterpart_is_refused(tmp_path: Path) -> None:
    gpt = {**SHAPE, "activation": "gelu"}
    for model in (Model(**gpt), Model(**SHAPE, dropout=0.1), Model(**SHAPE, biases="qkv", qk_norm=True)):
        with pytest.raises(ValueError, match="has no counterpart"):
            config_of(model)
    config = config_of(MODELS["llama"])
    for change, told in (
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "'llama3' without low_freq_factor"),
        ({"rope_scaling": {"type": "linear", "factor": 8.0}}, "rotary positions of type 'linear'"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rotary positions of type 'yarn'"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"model_type": "mixtral"}, "valid: llama, qwen2, qwen3"),
        ({"attention_bias": True}, "attention_bias and mlp_bias"),
    ):
        with pytest.raises(ValueError, match=told):
            model_of({**config, **change})
    newer = {key: value for key, value in config.items() if key != "rope_theta"}
    newer["rope_parameters"] = {"rope_type": "default", "rope_theta": 500_000.0}
    assert model_of(newer).rope_theta == 500_000.0
    stretched_config = config_of(MODELS["llama-3.1"])
    newest = {
        key: value for key, value in stretched_config.items() if key not in ("rope_theta", "rope_scaling")
    }
    newest["rope_parameters"] = {**stretched_config["rope_scaling"], "rope_theta": 10_000.0}
    assert model_of(newest) == model_of(stretched_config)


def test_files_that_do_not_fit_are_named(tmp_path: Path) -> None:
    model = MODELS["llama"]
    with pytest.raises(ValueError, match="holds no model"):
        read(tmp_path)
    write(tmp_path, model=model, weights=dict(trained(model).named_parameters()))
    file = tmp_path / "model.safetensors"
    whole = load_file(file)
    for change, told in (
        ({"model.norm.weight": torch.zeros(3)}, r"model.norm.weight is of shape \(3,\); expected \(24,\)"),
        ({"extra": torch.zeros(1)}, "left over: extra"),
    ):
        save_file({**whole, **change}, file)
        with pytest.raises(ValueError, match=told):
            read(tmp_path)
    save_file({key: value for key, value in whole.items() if key != "lm_head.weight"}, file)
    with pytest.raises(ValueError, match=r"lm_head\.weight is missing"):
        read(tmp_path)
    file.write_bytes(b"noise")
    with pytest.raises(ValueError, match="damaged"):
        read(tmp_path)
    file.unlink()
    with pytest.raises(ValueError, match=r"no \.safetensors"):
        read(tmp_path)
