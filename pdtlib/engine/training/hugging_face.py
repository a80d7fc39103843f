"""Weights in and out as Hugging Face safetensors, for the models of the Llama family.

Our Llama style is theirs under other names: halves of a head are rotated against each other in the same
way, so no matrix is permuted. ``biases`` none or all is Llama, qkv is Qwen2, and qk_norm without biases is
Qwen3.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from pdtlib.engine.training.checkpoint import Part, load, save
from pdtlib.engine.training.pieces import scalar_parts
from pdtlib.engine.training.run_dir import begin, checkpoint_path, last_checkpoint, read_job
from pdtlib.plan.params import tensors
from pdtlib.plan.spec import Job, Model, RopeScaling

NAMES = {
    "embed": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
    "attn_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    **{f"attn.{part}": f"self_attn.{part}_proj" for part in "qkvo"},
    "attn.q_norm": "self_attn.q_norm",
    "attn.k_norm": "self_attn.k_norm",
    **{f"mlp.{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")},
}
"""Our module -> theirs, within a layer or outside all of them."""

FAMILIES = {
    # model_type: (architecture, biases, qk_norm)
    "llama": ("LlamaForCausalLM", ("none", "all"), False),
    "qwen2": ("Qwen2ForCausalLM", ("qkv",), False),
    "qwen3": ("Qwen3ForCausalLM", ("none",), True),
}


def their_name(name: str) -> str:
    """The name that a tensor has in a Hugging Face file.

    >>> their_name("layers.3.attn.q.weight")
    'model.layers.3.self_attn.q_proj.weight'
    """
    module, _, leaf = name.rpartition(".")
    layer = re.fullmatch(r"layers\.(\d+)\.(.+)", module)
    if layer:
        return f"model.layers.{layer[1]}.{NAMES[layer[2]]}.{leaf}"
    return f"{NAMES[module]}.{leaf}"


def config_of(model: Model) -> dict[str, Any]:
    """The ``config.json`` of a model. Raises ``ValueError`` where none of :data:`FAMILIES` is like it."""
    shape = (model.activation, model.norm, model.positions)
    if shape != ("swiglu", "rmsnorm", "rotary") or model.moe is not None or model.dropout:
        raise ValueError(
            f"model: {' + '.join(shape)}, dropout={model.dropout} has no counterpart "
            "(valid: swiglu + rmsnorm + rotary, dense, without dropout)"
        )
    kind = next(
        (
            kind
            for kind, (_, biases, qk_norm) in FAMILIES.items()
            if model.biases in biases and model.qk_norm == qk_norm
        ),
        None,
    )
    if kind is None:
        raise ValueError(
            f"model.biases={model.biases!r} with qk_norm={model.qk_norm} has no counterpart "
            "(valid: none or all without qk_norm, qkv without qk_norm, none with qk_norm)"
        )
    all_biases = model.biases == "all"
    return {
        "architectures": [FAMILIES[kind][0]],
        "model_type": kind,
        "vocab_size": model.vocab,
        "hidden_size": model.hidden,
        "intermediate_size": model.ffn,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "max_position_embeddings": model.seq,
        "hidden_act": "silu",
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rope_theta,
        **({} if model.rope_scaling is None else {"rope_scaling": _their_scaling(model.rope_scaling)}),
        "tie_word_embeddings": model.tied_embeddings,
        **({"attention_bias": all_biases, "mlp_bias": all_biases} if kind == "llama" else {}),
        **({"attention_bias": False} if kind == "qwen3" else {}),
        "torch_dtype": "float32",
    }


def model_of(config: Mapping[str, Any]) -> Model:
    """The model that a ``config.json`` describes.

    Raises ``ValueError`` for what the engine cannot be, rotary positions scaled otherwise than Llama 3.1's
    among it.
    """
    kind = config.get("model_type")
    if kind not in FAMILIES:
        raise ValueError(f"config.json: model_type={kind!r} (valid: {', '.join(FAMILIES)})")
    for key, ours in (("hidden_act", "silu"), ("use_sliding_window", False)):
        if config.get(key, ours) != ours:
            raise ValueError(f"config.json: {key}={config[key]}; the engine's models have {ours}")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}  # the newer name, the older one
    kind_of_rope = rope.get("rope_type", rope.get("type", "default")) if isinstance(rope, Mapping) else rope
    if kind_of_rope not in ("default", "llama3"):
        raise ValueError(
            f"config.json: rotary positions of type {kind_of_rope!r} are stretched beyond those that the "
            "model was trained on in a way that the engine's models have not (valid: default, llama3)"
        )
    _, biases, qk_norm = FAMILIES[kind]
    with_bias = bool(config.get("attention_bias", False)), bool(config.get("mlp_bias", False))
    if kind == "llama" and with_bias not in ((False, False), (True, True)):
        raise ValueError("config.json: attention_bias and mlp_bias must be both true or both false")
    heads = config["num_attention_heads"]
    return Model(
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        ffn=config["intermediate_size"],
        vocab=config["vocab_size"],
        seq=config["max_position_embeddings"],
        activation="swiglu",
        norm="rmsnorm",
        positions="rotary",
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        biases="all" if kind == "llama" and all(with_bias) else biases[0],
        qk_norm=qk_norm,
        norm_eps=config.get("rms_norm_eps", 1e-6),
        rope_theta=config.get("rope_theta", rope.get("rope_theta", 10_000.0)),
        rope_scaling=_our_scaling(rope) if kind_of_rope == "llama3" else None,
    )


SCALING = {
    "factor": "factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "original_seq": "original_max_position_embeddings",
}
"""Our field of scaled rotary positions -> theirs."""


def _their_scaling(scaling: RopeScaling) -> dict[str, Any]:
    return {"rope_type": "llama3", **{theirs: getattr(scaling, ours) for ours, theirs in SCALING.items()}}


def _our_scaling(rope: Mapping[str, Any]) -> RopeScaling:
    missing = [theirs for theirs in SCALING.values() if theirs not in rope]
    if missing:
        raise ValueError(f"config.json: rotary positions of type 'llama3' without {', '.join(missing)}")
    return RopeScaling(**{ours: rope[theirs] for ours, theirs in SCALING.items()})


def write(directory: Path, *, model: Model, weights: Mapping[str, Tensor]) -> None:
    """Write ``config.json`` and ``model.safetensors``; ``weights`` are whole tensors under our names."""
    config = config_of(model)
    directory.mkdir(parents=True, exist_ok=True)
    theirs = {their_name(spec.name): weights[spec.name].contiguous() for spec in tensors(model)}
    save_file(theirs, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def read(directory: Path) -> tuple[Model, dict[str, Tensor]]:
    """The model and its whole tensors under our names, from one file or several with an index.

    Raises ``ValueError`` for a model that the engine cannot be, and for tensors that are missing, left over
    or of another shape.
    """
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{directory} holds no model: config.json: {error.strerror}") from error
    model = model_of(config)
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{directory} holds no .safetensors file")
    theirs: dict[str, Tensor] = {}
    for file in files:
        try:
            theirs.update(load_file(file))
        except SafetensorError as error:
            raise ValueError(f"{file} is damaged: {error}") from error
    if model.tied_embeddings:
        theirs.pop("lm_head.weight", None)  # some writers repeat it
    weights = {}
    for spec in tensors(model):
        found = theirs.pop(their_name(spec.name), None)
        if found is None or tuple(found.shape) != spec.shape:
            shape = "missing" if found is None else f"of shape {tuple(found.shape)}"
            raise ValueError(f"{directory}: {their_name(spec.name)} is {shape}; expected {spec.shape}")
        weights[spec.name] = found
    if theirs:
        raise ValueError(f"{directory}: left over: {', '.join(sorted(theirs)[:5])}")
    return model, weights


def export_run(run: Path, *, to: Path) -> None:
    """Write the weights of a run's last checkpoint, whatever layout wrote it.

    Raises ``ValueError`` for a run without a checkpoint or a model without a counterpart.
    """
    model, path = read_job(run).model, last_checkpoint(run)
    if path is None:
        raise ValueError(f"{run} has no checkpoint")
    config_of(model)
    weights = {spec.name: torch.zeros(spec.shape) for spec in tensors(model)}
    parts = {
        f"model.{name}": [Part(tuple(weight.shape), 0, weight.view(-1))] for name, weight in weights.items()
    }
    load(path, parts=parts)
    write(to, model=model, weights=weights)


def begin_run(run: Path, *, job: Job, weights_from: Path) -> None:
    """Make ``run`` a run directory that has trained 0 steps, from weights in Hugging Face's format.

    ``pdt run JOB --out RUN --resume`` goes on from it in whatever layout JOB has. Raises ``ValueError`` where
    the weights are not those of the job's model.
    """
    model, weights = read(weights_from)
    same = ("rope_theta", "rope_scaling", "norm_eps", "kv_heads", "heads")
    if tensors(model) != tensors(job.model) or any(
        getattr(model, field) != getattr(job.model, field) for field in same
    ):
        raise ValueError(f"{weights_from} holds another model than the job: {model} and {job.model}")
    begin(run, job=job, resume_step=None)
    parts: dict[str, list[Part]] = scalar_parts({"num_steps": 0})
    for name, weight in weights.items():
        for key in (f"model.{name}", f"optimizer.exp_avg.{name}", f"optimizer.exp_avg_sq.{name}"):
            values = weight.float() if key.startswith("model.") else torch.zeros(weight.shape)
            parts[key] = [Part(tuple(weight.shape), 0, values.reshape(-1))]
    (run / "checkpoints").mkdir()
    save(checkpoint_path(run, 0), parts=parts)
