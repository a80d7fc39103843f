"""Which part of which tensor a rank holds under tensor, pipeline and expert parallelism.

Tensor parallelism cuts q, k, v (into heads), gate and up by their output, o and down by their input, and
embeddings by the vocabulary, padded to a multiple of the ranks (Shoeybi 2019, section 3). Norms, learned
positions, the router and the biases of o and down are whole on every tensor-parallel rank. A rank repeats a
KV head where there are fewer of them than ranks. Experts are dealt out over the expert-parallel group and cut
like an MLP.
"""

from dataclasses import replace
from functools import lru_cache

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


def chunk_ends(job: Job, chunk: Chunk) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """The tensors of a chunk before and behind its layers, as a rank holds them.

    The last chunk has a tied embedding too, of the rank's own where the first chunk is elsewhere.
    """
    model, tp = job.model, job.parallel.tp
    before = [cut(spec, model=model, tp=tp) for spec in tensors_before(model)] if chunk.first else []
    after = [cut(spec, model=model, tp=tp) for spec in tensors_after(model)] if chunk.last else []
    if chunk.last and model.tied_embeddings and not chunk.first:
        after += [cut(spec, model=model, tp=tp) for spec in tensors_before(model) if spec.name == TIED]
    return tuple(before), tuple(after)


@lru_cache(maxsize=256)
def layer_parts(model: Model, tp: int, ep: int) -> tuple[TensorSpec, ...]:
    """The tensors of layer 0 as a rank holds them, which stand for every layer's.

    Of the experts a rank holds the first ``experts / ep``, which stand for any rank's: all have one shape.
    """
    kept = 0 if model.moe is None else model.moe.experts // ep
    return tuple(
        cut(spec, model=model, tp=tp)
        for spec in layer_tensors(model)
        if not is_expert(spec) or int(spec.name.split(".")[4]) < kept
    )


def chunk_tensors(job: Job, chunk: Chunk) -> tuple[TensorSpec, ...]:
    """The tensors of a chunk as a rank holds them, by their names, in forward order."""
    before, after = chunk_ends(job, chunk)
    layers = [
        replace(spec, name=f"layers.{layer}.{spec.name.split('.', 2)[2]}", layer=layer)
        for layer in chunk.layers
        for spec in layer_parts(job.model, job.parallel.tp, job.parallel.ep)
    ]
    return (*before, *layers, *after)


def rank_tensors(job: Job, stage: int) -> tuple[TensorSpec, ...]:
    """The tensors that a rank of this pipeline stage holds, in its own shapes, chunk by chunk, each once."""
    found: dict[str, TensorSpec] = {}
    for chunk in chunks_of(job, stage):
        for spec in chunk_tensors(job, chunk):
            found.setdefault(spec.name, spec)
    return tuple(found.values())
