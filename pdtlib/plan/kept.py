"""The most that a pipeline rank keeps for its backward passes at one time, by the very table that it runs.

:func:`pdtlib.plan.memory.kept_for_backward` multiplies the largest chunk by a closed form of the schedule's
chunks in flight, which is what papers give and what a planner needs at once. Here the rank's program is gone
through, action by action: a forward adds what its own chunk keeps, with embedding or loss where it has them;
a backward takes it away, or leaves what the gradients of the weights still need where they come later.
"""

from collections.abc import Iterator
from dataclasses import replace

from pdtlib.plan.activations import SavedTensor, Setting, Sizes, logits_bytes
from pdtlib.plan.chunks import Chunk, chunks_of
from pdtlib.plan.memory import one_layer_bytes, outside_bytes, setting_of
from pdtlib.plan.memory_timeline import schedule_of
from pdtlib.plan.sharding import shard_numel
from pdtlib.plan.spec import Job, Model


def most_kept(job: Job, stage: int) -> float:
    """Bytes that a rank of this stage keeps for its backward passes at the most, the logits included.

    What a recomputed layer keeps for a moment comes on top
    (:func:`pdtlib.plan.memory.recomputed_layer_bytes`).
    """
    table, chunks = schedule_of(job), chunks_of(job, stage)
    whole = [chunk_bytes(job, chunk) for chunk in chunks]
    halves = [second_half_bytes(job, chunk) for chunk in chunks]
    held = most = 0.0
    for op, micro_batch, chunk in table.programs[stage]:
        if op == "F":
            held += whole[chunk]
        elif op == "W":
            held -= halves[chunk]
        else:
            held -= whole[chunk]
            if (micro_batch, chunk) in table.deferred[stage]:
                held += halves[chunk]
        most = max(most, held)
    return most


def chunk_bytes(job: Job, chunk: Chunk) -> float:
    """What a chunk keeps for the backward pass of a micro-batch."""
    setting = setting_of(job)
    plain = replace(setting, recompute="none")
    num_plain = len(chunk.layers) - chunk.recomputed
    kept = chunk.recomputed * one_layer_bytes(job, setting) + num_plain * one_layer_bytes(job, plain)
    kept += outside_bytes(job, plain if num_plain else setting, first=chunk.first, last=chunk.last)
    if chunk.last:
        tokens = setting.micro_batch * setting.seq / setting.cp
        kept += logits_bytes(tokens, vocab=job.model.vocab, tp=job.parallel.tp)
    return kept


def second_half_bytes(job: Job, chunk: Chunk) -> float:
    """What a chunk keeps between the gradients of its input and those of its weights, for a micro-batch."""
    model, setting = job.model, setting_of(job)
    kept = len(chunk.layers) * sum(tensor.bytes for tensor in second_half_tensors(model, setting=setting))
    size = Sizes(model, setting)
    if chunk.first:
        kept += 8 * size.tokens + size.tensor("embedding", size.hidden, "sequence", "its gradient").bytes
    if chunk.last:
        kept += size.tensor("head input", size.hidden, "sequence", "the head's gradient").bytes
        kept += size.tokens * shard_numel(model.vocab, setting.tp) * setting.element_bytes
    return kept


def second_half_tensors(model: Model, *, setting: Setting) -> Iterator[SavedTensor]:
    """What the gradients of a layer's matrices are made of: their inputs, and their outputs' gradients."""
    size = Sizes(model, setting)
    yield size.tensor("q, k, v input", size.hidden, "sequence", "shared by the three products")
    yield size.tensor("q, k, v gradients", size.query + 2 * size.key, "tensor", "of the three products")
    yield size.tensor("o input", size.query, "tensor", "the output projection's")
    yield SavedTensor("o gradient", size.hidden * setting.element_bytes, "none", "of its whole output")
    if model.moe is None:
        yield size.tensor("mlp input", size.hidden, "sequence", "the first products'")
        rows, inner, split = size.hidden, size.tokens * model.ffn, "tensor"
    else:
        yield SavedTensor("router input", size.hidden * setting.element_bytes, "none", "the router's")
        yield SavedTensor(
            "router gradient",
            size.tokens * model.moe.experts * setting.element_bytes,
            "none",
            "of its output",
        )
        rows, inner, split = (
            size.hidden * model.moe.top_k,
            size.tokens * model.moe.top_k * model.moe.ffn,
            "tensor",
        )
        yield SavedTensor("expert inputs", rows * setting.element_bytes, "none", "the first products'")
    matrices = 2 if model.activation == "swiglu" else 1
    yield size.tensor("first gradients", matrices * inner, split, "of gate and up")
    yield size.tensor("down input", inner, split, "the last product's")
    yield SavedTensor("down gradient", rows * setting.element_bytes, "none", "of its whole output")
