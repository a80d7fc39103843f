"""Memory over a step: what a pipeline stage holds at each moment, as micro-batches come and go."""

from dataclasses import dataclass

from pdtlib.plan.flats import held_bytes
from pdtlib.plan.memory import chunks_in_flight, kept_for_backward, recomputed_layer_bytes
from pdtlib.plan.schedule import Costs, Schedule, build, simulate
from pdtlib.plan.spec import Job


@dataclass(frozen=True)
class MemoryTimeline:
    """Steps ``(time, bytes)``: from each time on so many bytes are held. ``states`` of them never leave."""

    states: float
    steps: tuple[tuple[float, float], ...]

    @property
    def peak(self) -> float:
        return max(held for _, held in self.steps)


def schedule_of(job: Job) -> Schedule:
    """The table of the job's pipeline; of one stage without one."""
    parallel = job.parallel
    chunks = parallel.vpp if parallel.schedule == "interleaved" and parallel.pp > 1 else None
    name = "1f1b" if parallel.pp == 1 or chunks == 1 else parallel.schedule
    return build(name, stages=parallel.pp, microbatches=job.gradient_accumulation, chunks=chunks)


def memory_timeline(job: Job, stage: int, *, costs: Costs | None = None) -> MemoryTimeline:
    """What a rank of this stage holds over the step, in the unit of time of ``costs``.

    By default a forward pass takes 1 and a backward pass 2. Activations of a micro-batch arrive when its
    forward pass starts and leave when the backward pass that needs them ends; with full recomputation one
    layer's worth comes back while a backward pass runs.

    >>> from pdtlib.plan.job import from_dict
    >>> tables = {"model": {"preset": "gpt2"}, "train": {"global_batch": 8}, "parallel": {"pp": 4}}
    >>> timeline = memory_timeline(from_dict(tables), 0)
    >>> held = {round((held - timeline.states) / timeline.steps[0][1], 2) for _, held in timeline.steps}
    >>> len(held)  # 0 to 4 micro-batches at a time
    5
    """
    timeline = simulate(schedule_of(job), costs or Costs(forward=1, backward_input=1, backward_weight=1))
    states = held_bytes(job, stage).total
    activations, logits = kept_for_backward(job, stage)
    again = recomputed_layer_bytes(job, stage)
    each = (activations + logits - again) / (chunks_in_flight(job, stage) / job.parallel.vpp)
    steps = [(0.0, states)]
    steps += [
        (time, states + held * each + (again if held else 0.0)) for time, held in timeline.memory(stage)
    ]
    return MemoryTimeline(states, tuple(steps))
