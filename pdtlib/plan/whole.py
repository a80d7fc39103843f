"""What ZeRO holds whole for a moment, beside what a rank holds between steps.

Stage 2: a bucket of gradients that is filled while the one before it is reduced. Stage 3, where a pass goes
through the layers of a chunk one by one: the parameters of the layer at work and of the one fetched ahead,
the gradients of the layer that gets them and of the one before, which are being reduced, and the chunk's root
(embedding, final norm, head). The engine counts the same
(:class:`pdtlib.engine.data_parallel.flat.Whole`).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from pdtlib.plan.chunks import Chunk, chunk_runs, layout_of
from pdtlib.plan.flats import Flat, flats
from pdtlib.plan.placement import is_expert
from pdtlib.plan.schedule.actions import completing
from pdtlib.plan.schedule.catalog import FAMILIES, build
from pdtlib.plan.spec import Job
from pdtlib.plan.states import engine_accounting


@dataclass(frozen=True)
class _Units:
    """Elements of a chunk's units: the ``layers``, and the root, which gets its gradients before them
    (``head``) or after them (``embedding``). ``tied`` of the root are a rank's other chunk's, too."""

    number: int
    layers: tuple[int, ...]
    head: int
    embedding: int
    tied: int

    @property
    def root(self) -> int:
        return self.head + self.embedding

    @property
    def all(self) -> int:
        return self.root + sum(self.layers)

    def moments(self) -> Iterator[tuple[int, int]]:
        """A backward pass: (the layer at work, elements of gradients)."""
        for at in reversed(range(len(self.layers))):
            yield at, self.head + sum(self.layers[at : at + 2])
        if self.embedding:
            yield 0, self.root + sum(self.layers[:2])


def whole_bytes(job: Job, stage: int = 0) -> int:
    """Most bytes that a rank of this pipeline stage holds whole at one moment of a step, beside its states.

    0 below ZeRO-2 and without another rank.
    """
    found, zero = flats(job, stage), job.train.zero_stage
    if zero < 2 or job.parallel.dp * job.parallel.cp == 1:
        return 0
    accounting = engine_accounting(job.train.precision, job.train.grad_precision)
    passed = [(number, chunk) for number, (chunk, passes) in enumerate(chunk_runs(job, stage)) if passes]
    if zero == 2:
        return accounting.grads * max(_two_buckets(number, chunk, found) for number, chunk in passed)
    chunks = [_units(number, chunk, found) for number, chunk in passed]
    moments = _moments_of_loop(job, chunks[0])
    if job.parallel.pp > 1:
        moments = _moments_of_pipeline(job, stage, chunks)
    return max(params * accounting.params + grads * accounting.grads for params, grads in moments)


def _two_buckets(number: int, chunk: Chunk, found: Sequence[Flat]) -> int:
    """Elements of the largest two buckets of a chunk that follow one another in its backward pass.

    Experts' buckets are filled beside the others, so there it is the largest two of all.
    """
    tied = [flat.padded for flat in found if flat.tied]
    own = [flat for flat in found if flat.chunk == number and not flat.tied]
    sizes = [*tied * chunk.last, *(flat.padded for flat in own), *tied * chunk.first]
    if any(is_expert(spec) for flat in own for spec in flat.members):
        return sum(sorted(sizes)[-2:])
    return max(map(sum, zip(sizes, [*sizes[1:], 0], strict=True)))


def _units(number: int, chunk: Chunk, found: Sequence[Flat]) -> _Units:
    layers: Counter[int] = Counter()
    root = tied = 0
    for flat in found:
        if flat.tied:
            tied = flat.padded if chunk.first or chunk.last else 0
        elif flat.chunk == number and flat.layer is not None:
            layers[flat.layer] += flat.padded
        elif flat.chunk == number:
            root += flat.padded
    root += tied
    return _Units(
        number=number,
        layers=tuple(layers[layer] for layer in sorted(layers)),
        head=root if chunk.last else 0,
        embedding=0 if chunk.last else root,
        tied=tied,
    )


def _moments_of_loop(job: Job, chunk: _Units) -> Iterator[tuple[int, int]]:
    """(elements of parameters, of gradients) while micro-batches follow one another without a pipeline."""
    for at, grads in chunk.moments():
        fetched = at - 1 if job.train.reshard_after_forward else 0
        yield chunk.root + sum(chunk.layers[max(0, fetched) : at + 1]), grads


def _moments_of_pipeline(job: Job, stage: int, chunks: Sequence[_Units]) -> Iterator[tuple[int, int]]:
    """(elements of parameters, of gradients) in a pipeline's backward passes.

    The halves of a split one have parameters or gradients; DualPipe splits some, and others not. Without
    resharding whatever a chunk has gathered is kept to its last backward pass.
    """
    family = FAMILIES[job.parallel.schedule]
    always_split = family.splits_backward and family.layout != "two-way"
    if job.train.reshard_after_forward:
        for chunk in chunks:
            for params, grads in _moments_of_loop(job, chunk):
                yield from [(params, 0), (0, grads)] if always_split else [(params, grads)]
        return
    by_number = {chunk.number: chunk for chunk in chunks}
    for number, last, unfinished in _backward_passes(job, stage):
        chunk = by_number[number]
        others = [by_number[other] for other in unfinished if other != number]
        kept = sum(other.all - (other.tied if chunk.tied else 0) for other in others)
        for at, grads in chunk.moments():
            left = chunk.root + sum(chunk.layers[: at + 1]) if last else chunk.all
            yield kept + left, grads


def _backward_passes(job: Job, stage: int) -> frozenset[tuple[int, bool, frozenset[int]]]:
    """The kinds that the schedule has: (chunk, whether it is its last, chunks that still have one to come).

    After twice as many micro-batches as stages no new kind comes, so longer tables are not made.
    """
    layout, parallel = layout_of(job), job.parallel
    return _kinds(
        parallel.schedule,
        layout.stages,
        min(job.gradient_accumulation, 2 * layout.stages + 1),
        None if FAMILIES[parallel.schedule].chunks else layout.chunks,
    )[stage]


@lru_cache(maxsize=256)
def _kinds(
    schedule: str, stages: int, microbatches: int, chunks: int | None
) -> tuple[frozenset[tuple[int, bool, frozenset[int]]], ...]:
    table = build(schedule, stages=stages, microbatches=microbatches, chunks=chunks)
    found = []
    for program in table.programs:
        ends = completing(program)
        kinds, to_come = set(), Counter(act.chunk for act in ends)
        for act in ends:
            unfinished = frozenset(to_come)
            to_come[act.chunk] -= 1
            last = to_come[act.chunk] == 0
            kinds.add((act.chunk, last, unfinished))
            if last:
                del to_come[act.chunk]
        found.append(frozenset(kinds))
    return tuple(found)
