"""What accompanies a run, by its options."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist

from pdtlib.engine.mesh import Mesh
from pdtlib.engine.optimizer import ShardedAdamW
from pdtlib.engine.parallelize import Parallelized
from pdtlib.engine.training.checks import Run
from pdtlib.engine.training.companion import Companion
from pdtlib.engine.training.failures import Refused
from pdtlib.engine.training.pieces import Place
from pdtlib.plan.spec import Problem
from pdtlib.resilience import faults
from pdtlib.resilience.memory import PeerMemory
from pdtlib.resilience.preemption import Preemption
from pdtlib.resilience.replicas import ReplicaCheck
from pdtlib.resilience.samples import SampleLog
from pdtlib.resilience.watchdog import Watchdog
from pdtlib.testbed.pace import Pace


class Together(Companion):
    """Several companions as one, in order."""

    def __init__(self, companions: Sequence[Companion]) -> None:
        self.companions = list(companions)

    def join(self, mesh: Mesh, *, on_disk: int) -> int:
        newest = on_disk
        self._source: Companion | None = None
        for one in self.companions if dist.is_initialized() else ():
            step = one.join(mesh, on_disk=on_disk)
            if step > newest:
                newest, self._source = step, one
        return newest

    def load(self, optimizer: ShardedAdamW, *, place: Place) -> None:
        assert self._source is not None
        self._source.load(optimizer, place=place)

    def begin(self, parts: Parallelized, optimizer: ShardedAdamW, *, place: Place, first: int) -> None:
        for one in self.companions:
            one.begin(parts, optimizer, place=place, first=first)

    def before_step(self, step: int) -> None:
        for one in self.companions:
            one.before_step(step)

    def before_update(self, step: int) -> None:
        for one in self.companions:
            one.before_update(step)

    def after_step(self, step: int) -> None:
        for one in self.companions:
            one.after_step(step)

    def must_end(self, step: int) -> bool:
        return any(one.must_end(step) for one in self.companions)

    def end(self) -> None:
        for one in self.companions:
            one.end()


def accompany(run: Run) -> Companion:
    """The companions that the run's options ask for.

    An elastic run has a log of its samples and compares its replicas' gradients in every step. Raises
    :class:`Refused` for options out of range.
    """
    options = run.options
    problems = [
        Problem(name, f"must be 0 (off) or more, not {value}")
        for name, value in (
            ("--watchdog", options.watchdog_s),
            ("--memory-every", options.memory_every),
            ("--stage-ms", options.stage_ms),
        )
        if value < 0
    ]
    if options.stage_ms and run.job.parallel.pp == 1:
        problems.append(Problem("--stage-ms", "the job has no pipeline stages (parallel.pp is 1)"))
    if problems:
        raise Refused(problems)
    found: list[Companion] = []
    if options.watchdog_s:
        found.append(Watchdog(options.watchdog_s))
    if options.elastic:
        found.append(SampleLog(run))
    if options.memory_every:
        found.append(PeerMemory(run, every=options.memory_every))
    if options.stage_ms:
        found.append(Pace(options.stage_ms / 1e3))
    if options.preemptible:
        found.append(Preemption())
    if options.faults is not None:
        found.append(faults.Injector(run, faults.read(options.faults)))
    if options.elastic:
        found.append(ReplicaCheck())  # after the injector, whose flips it must see
    return Together(found)
