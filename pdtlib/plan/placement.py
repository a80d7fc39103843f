"""Which part of which tensor a rank holds under tensor, pipeline and expert parallelism.

Tensor parallelism cuts q, k, v (into heads), gate and up by their output, o and down by their input, and
embeddings by the vocabulary, padded to a multiple of the ranks (Shoeybi 2019, section 3). Norms, learned
positions, the router and the biases of o and down are whole on every tensor-parallel rank. A rank repeats a
KV head where there are fewer of them than ranks. Experts are dealt out over the expert-parallel group and cut
like an MLP.
"""

from dataclasses import replace

from pdtlib.plan.chunks import Chunk, chunks_of
from pdtlib.plan.params import TensorSpec, layer_tensors, tensors_after, tensors_before
from pdtlib.plan.sharding import shard_numel
from pdtlib.plan.spec import Job, Model

TIED = "embed.weight"
"""The tensor that embedding and head share in a model with tied embeddings."""

_BY_OUTPUT = ("q", "gate", "up")
_BY_INPUT = ("o", "down")


def cut(spec: TensorSpec, *, model: Model, tp: int) -> TensorSpec:
    """The tensor as one of ``tp`` ranks holds it.

    >>> from pdtlib.plan import params, presets
    >>> model = presets.model("llama3-8b")
    >>> shapes = {spec.name: cut(spec, model=model, tp=16).shape for spec in params.tensors(model)}
    >>> shapes["layers.0.attn.q.weight"], shapes["layers.0.attn.k.weight"], shapes["layers.0.mlp.down.weight"]
    ((256, 4096), (128, 4096), (4096, 896))
    """
    if tp == 1:
        return spec
    *_, owner, leaf = ("", *spec.name.split("."))
    first, *rest = spec.shape
    if owner in ("embed", "head"):
        return replace(spec, shape=(shard_numel(first, tp), *rest))
    if owner in _BY_OUTPUT:
        return replace(spec, shape=(first // tp, *rest))
    if owner in ("k", "v"):
        return replace(spec, shape=(first * max(1, tp // model.kv_heads) // tp, *rest))
    if owner in _BY_INPUT and leaf == "weight":
        return replace(spec, shape=(first, rest[0] // tp))
    return spec


def is_expert(spec: TensorSpec) -> bool:
    """Whether the tensor belongs to an expert, and so is reduced over fewer ranks than the rest."""
    return spec.part == "experts"


def is_repeated_head(spec: TensorSpec, *, model: Model, tp: int) -> bool:
    """Whether several tensor-parallel ranks hold the same KV head's part of the tensor."""
    return tp > model.kv_heads and spec.name.split(".")[-2] in ("k", "v")


def chunk_tensors(job: Job, chunk: Chunk) -> tuple[TensorSpec, ...]:
    """The tensors of a chunk as a rank holds them, in forward order.

    The last chunk has a tied embedding too, of the rank's own where the first chunk is elsewhere. Of the
    experts a rank holds the first ``experts / ep``, which stand for any rank's: all experts have one shape.
    """
    model = job.model
    kept_experts = 0 if model.moe is None else model.moe.experts // job.parallel.ep
    found = list(tensors_before(model)) if chunk.first else []
    for layer in chunk.layers:
        found += [
            spec
            for spec in layer_tensors(model, layer)
            if not is_expert(spec) or int(spec.name.split(".")[4]) < kept_experts
        ]
    if chunk.last:
        found += tensors_after(model)
        if model.tied_embeddings and not chunk.first:
            found.append(next(spec for spec in tensors_before(model) if spec.name == TIED))
    return tuple(cut(spec, model=model, tp=job.parallel.tp) for spec in found)


def rank_tensors(job: Job, stage: int) -> tuple[TensorSpec, ...]:
    """The tensors that a rank of this pipeline stage holds, in its own shapes, chunk by chunk, each once."""
    found: dict[str, TensorSpec] = {}
    for chunk in chunks_of(job, stage):
        for spec in chunk_tensors(job, chunk):
            found.setdefault(spec.name, spec)
    return tuple(found.values())
