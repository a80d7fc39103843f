"""Which part of the model every pipeline rank holds, chunk by chunk, and which of its layers run twice.

One rule for the plan and the engine: the layers are cut into as many runs as there are positions, sizes
differing by at most one, the larger runs first; the schedule's layout says which rank holds which position
(:class:`pdtlib.plan.schedule.actions.Layout`).
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from pdtlib.plan.schedule.actions import Layout
from pdtlib.plan.schedule.catalog import FAMILIES
from pdtlib.plan.spec import Job


@dataclass(frozen=True)
class Chunk:
    """A run of layers without a gap. ``first`` has the embedding, ``last`` the final norm and the head.

    The first ``recomputed`` of its layers are recomputed, in the way that ``train.recompute`` says.
    """

    layers: range
    recomputed: int
    first: bool
    last: bool


def split_layers(layers: int, chunks: int) -> tuple[range, ...]:
    """Cut ``layers`` into ``chunks`` runs whose sizes differ by at most one, the larger ones first.

    >>> [len(run) for run in split_layers(30, 4)]
    [8, 8, 7, 7]
    """
    if not 1 <= chunks <= layers:
        raise ValueError(f"chunks={chunks}: {layers} layers can be cut into 1 to {layers} chunks")
    size, extra = divmod(layers, chunks)
    starts = [i * size + min(i, extra) for i in range(chunks + 1)]
    return tuple(range(a, b) for a, b in pairwise(starts))


def layout_of(job: Job) -> Layout:
    """Where the job's schedule puts the model's positions; a pipeline of one stage is a plain loop."""
    parallel = job.parallel
    kind = FAMILIES[parallel.schedule].layout if parallel.pp > 1 else "loop"
    return _layout(kind, parallel.pp, 2 if kind == "two-way" else parallel.vpp)


@lru_cache(maxsize=1024)
def _layout(kind: str, stages: int, chunks: int) -> Layout:
    return Layout(kind=kind, stages=stages, chunks=chunks)


def chunks_of(job: Job, stage: int) -> tuple[Chunk, ...]:
    """What a rank of this pipeline stage holds, chunk 0 first.

    ZB-V's first rank holds the first and the last position. DualPipe's ranks hold a chunk of each of the two
    copies of the model. Raises ``ValueError`` for a stage that the job does not have.

    >>> from pdtlib.plan.job import from_dict
    >>> tables = {"model": {"preset": "gpt2"}, "parallel": {"pp": 2, "schedule": "zb-v"}}
    >>> [(chunk.layers, chunk.first, chunk.last) for chunk in chunks_of(from_dict(tables), 0)]
    [(range(0, 3), True, False), (range(9, 12), False, True)]
    """
    parallel, train = job.parallel, job.train
    if not 0 <= stage < parallel.pp:
        raise ValueError(f"stage={stage}; valid: 0 to {parallel.pp - 1}")
    again = 0 if train.recompute == "none" else train.recompute_layers or job.model.layers
    return _chunks(job.model.layers, layout_of(job), again, stage)


@lru_cache(maxsize=4096)
def _chunks(layers: int, layout: Layout, again: int, stage: int) -> tuple[Chunk, ...]:
    runs = split_layers(layers, layout.length)
    places = [layout.position(stage, chunk) for chunk in range(layout.chunks)]
    return tuple(
        Chunk(runs[place], min(again, len(runs[place])), place == 0, place == layout.length - 1)
        for place in places
    )


def passed_chunks(job: Job, stage: int) -> tuple[Chunk, ...]:
    """The chunks of a rank that one micro-batch passes: all, but DualPipe's one of the two."""
    found = chunks_of(job, stage)
    return found[:1] if layout_of(job).copies > 1 else found


def chunk_runs(job: Job, stage: int) -> tuple[tuple[Chunk, int], ...]:
    """Every chunk of a rank of this pipeline stage with the micro-batches that pass it in a step."""
    layout, total = layout_of(job), job.gradient_accumulation
    return tuple(
        (chunk, len(layout.micro_batches(index, total))) for index, chunk in enumerate(chunks_of(job, stage))
    )


def num_layers(job: Job, stage: int) -> int:
    """Layers of a pipeline stage that one micro-batch passes."""
    return sum(len(chunk.layers) for chunk in passed_chunks(job, stage))


def num_recomputed(job: Job, stage: int) -> int:
    """Those of :func:`num_layers` that are recomputed.

    >>> from pdtlib.plan.job import from_dict
    >>> train = {"recompute": "full", "recompute_layers": 2}
    >>> num_recomputed(from_dict({"model": {"preset": "gpt2"}, "train": train, "parallel": {"pp": 3}}), 1)
    2
    """
    return sum(chunk.recomputed for chunk in passed_chunks(job, stage))


def has_first(job: Job, stage: int) -> bool:
    """Whether a rank of this pipeline stage has an embedding to read tokens with."""
    return any(chunk.first for chunk in chunks_of(job, stage))


def has_last(job: Job, stage: int) -> bool:
    """Whether a rank of this pipeline stage computes logits and loss."""
    return any(chunk.last for chunk in chunks_of(job, stage))
