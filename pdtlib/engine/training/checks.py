"""Everything that can be known to fail before a run starts, checked before anything is started or touched."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from pdtlib.engine.data import Batches, Corpus
from pdtlib.engine.parallelize import problems_of
from pdtlib.engine.training.checkpoint_index import CheckpointError, demand_intact
from pdtlib.engine.training.failures import Refused
from pdtlib.engine.training.options import COMPILERS, DEVICES, RANK_ORDERS, Options, read_change
from pdtlib.engine.training.run_dir import FILES, checkpoints, read_job
from pdtlib.plan import memory, params
from pdtlib.plan.job import Job, JobError, Problem, load, replace

CHECKPOINT_BYTES = 12
"""Bytes per parameter in a checkpoint: fp32 weights and two fp32 moments."""

PROCESS_BYTES = 200 * 2**20
"""What a Python process with torch takes before it holds any state."""

SPARE_BYTES = 32 * 2**20
"""Room kept for metrics, traces and TensorBoard events."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run that has passed every check. ``skipped`` are the damaged checkpoints that were passed over."""

    job: Job
    options: Options
    steps: int
    batches: Batches
    resume_from: Path | None
    skipped: tuple[str, ...] = ()


def check(options: Options, *, world_size: int | None, local_world_size: int) -> Run:
    """Return the run that ``options`` ask for, or raise :class:`Refused` with every reason against it.

    ``world_size`` None means that as many ranks will be started as the job needs.
    """
    job = _load(options)
    problems = [*problems_of(job), *_options(options)]
    needed = job.parallel.world_size
    if world_size is not None and needed != world_size:
        problems.append(
            Problem(
                "parallel",
                f"the job's degrees make {needed} ranks, but {world_size} were started",
                (f"torchrun --nproc-per-node {needed}", f"--set hardware.n_gpus={world_size}"),
            )
        )
    ranks_here = needed if world_size is None else local_world_size
    problems += _device(options, ranks_here)
    problems += _memory(options, job, ranks_here)
    resume_from, skipped = newest_intact(options.out) if options.resume else (None, ())
    if skipped and resume_from is None and not options.elastic:  # which begins anew, or from memory
        valid = ("--overwrite to begin anew",)
        problems.append(Problem("--resume", f"no checkpoint can be read: {skipped[0]}", valid))
    steps = job.train.steps if options.steps is None else options.steps
    found = list(_out(options, job, steps))
    problems += found
    batches = None
    try:
        corpus = Corpus(options.data, vocab=job.model.vocab)
        train = job.train
        batches = Batches(corpus, seq=job.model.seq, global_batch=train.global_batch, seed=train.seed)
    except ValueError as error:
        for line in str(error).splitlines():
            given, _, message = line.partition(": ")
            field, _, value = given.partition("=")
            problems.append(Problem(field, f"{value}: {message}" if value else message))
    if problems or batches is None:
        raise Refused(problems)
    return Run(
        job=job, options=options, steps=steps, batches=batches, resume_from=resume_from, skipped=skipped
    )


def newest_intact(out: Path) -> tuple[Path | None, tuple[str, ...]]:
    """The newest checkpoint that can be read, and why newer ones were passed over."""
    skipped = []
    for path in reversed(checkpoints(out)):
        try:
            demand_intact(path)
        except CheckpointError as error:
            skipped.append(str(error))
        else:
            return path, tuple(skipped)
    return None, tuple(skipped)


def _load(options: Options) -> Job:
    try:
        job = load(options.job)
        if options.changes:
            job = replace(job, dict(map(read_change, options.changes)))
        return job
    except JobError as error:
        raise Refused(error.problems) from error
    except OSError as error:
        raise Refused([Problem("job", f"{options.job}: {error.strerror}")]) from error
    except ValueError as error:
        raise Refused([Problem("job", str(error))]) from error


def _options(options: Options) -> Iterator[Problem]:
    if options.device not in DEVICES:
        yield Problem("--device", f"{options.device!r} is not one of its values", DEVICES)
    if options.compiler not in COMPILERS:
        yield Problem("--compiler", f"{options.compiler!r} is not one of its values", COMPILERS)
    if options.rank_order not in RANK_ORDERS:
        message = f"{options.rank_order!r} is not one of its values"
        yield Problem("--rank-order", message, tuple(RANK_ORDERS))
    if options.steps is not None and options.steps < 1:
        yield Problem("--steps", f"must be at least 1, not {options.steps}")
    if options.checkpoint_every < 0:
        message = f"must be 0 (at the end only) or more, not {options.checkpoint_every}"
        yield Problem("--checkpoint-every", message)


def _device(options: Options, ranks_here: int) -> Iterator[Problem]:
    gpus = torch.cuda.device_count()
    wants_gpu = options.device == "cuda" or (options.device == "auto" and gpus > 0)
    if wants_gpu and gpus < ranks_here:
        message = f"{ranks_here} ranks on this machine need as many GPUs, and it has {gpus}"
        yield Problem("--device", message, ("cpu",))


def _memory(options: Options, job: Job, ranks_here: int) -> Iterator[Problem]:
    """On a CPU the ranks share the machine's memory; the system would end one of them without a word."""
    if options.device == "cuda" or torch.cuda.device_count() > 0:
        return
    states = max(stage.total for stage in memory.stages_memory(job))
    copies = CHECKPOINT_BYTES * params.count(job.model).total / job.parallel.world_size
    needed, free = ranks_here * (states + copies + PROCESS_BYTES), _free_memory()
    if needed > free:
        message = (
            f"{ranks_here} rank(s) of {needed / ranks_here / 1e9:,.1f} GB need {needed / 1e9:,.1f} GB, "
            f"and this machine has {free / 1e9:,.1f} GB of memory free"
        )
        yield Problem("parallel", message, ("a smaller model", "fewer ranks (--nproc)"))


def _free_memory() -> float:
    """Bytes that new processes may take: what Linux calls available, elsewhere all physical memory."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _out(options: Options, job: Job, steps: int) -> Iterator[Problem]:
    out = options.out.absolute()
    if options.resume and options.overwrite:
        yield Problem("--resume", "and --overwrite exclude each other")
    if out.exists() and not out.is_dir():
        yield Problem("--out", f"{out} is a file; give a directory")
        return
    ancestor = next(path for path in (out, *out.parents) if path.exists())
    if not ancestor.is_dir():
        yield Problem("--out", f"{ancestor} is a file, so {out} cannot be made")
        return
    if not os.access(ancestor, os.W_OK | os.X_OK):
        yield Problem("--out", f"{ancestor} cannot be written to")
        return
    content = sorted(path.name for path in out.iterdir()) if out.exists() else []
    if content and not (options.resume or options.overwrite):
        message = f"{out} is not empty (it holds {', '.join(content[:4])}{', …' if content[4:] else ''})"
        valid = ("another directory", "--overwrite", "--resume")
        yield Problem("--out", message, valid if "job.json" in content else valid[:1])
    if content and "job.json" not in content and (options.resume or options.overwrite):
        yield Problem("--out", f"{out} holds no run (no job.json), so nothing in it will be touched")
    if options.resume and "job.json" in content:
        yield from _same_model(out, job)
    yield from _room(options, job, steps, ancestor)


def _same_model(out: Path, job: Job) -> Iterator[Problem]:
    """A checkpoint goes on under another layout, but not under another model, seed or batch."""
    try:
        before = read_job(out)
    except ValueError as error:
        yield Problem("--resume", f"{out / 'job.json'} is not a job: {error}")
        return
    same = ("global_batch", "seed")
    changed = [f"train.{name}" for name in same if getattr(job.train, name) != getattr(before.train, name)]
    if params.tensors(job.model) != params.tensors(before.model):
        changed.insert(0, "model")
    for field in changed:
        message = "is not what the run began with; a resumed run may change its layout, not this"
        yield Problem(field, message)


def _room(options: Options, job: Job, steps: int, ancestor: Path) -> Iterator[Problem]:
    every = options.checkpoint_every
    count = max(1, -(-steps // every)) if every > 0 else 1
    size = CHECKPOINT_BYTES * params.count(job.model).total
    needed, free = count * size + SPARE_BYTES, shutil.disk_usage(ancestor).free
    if options.overwrite:
        free += sum(path.stat().st_size for name in FILES for path in _files(options.out / name))
    if needed > free:
        message = (
            f"{ancestor} has {free / 1e6:,.0f} MB free, and this run writes {count} checkpoint(s) of "
            f"{size / 1e6:,.0f} MB: {needed / 1e6:,.0f} MB with its logs"
        )
        yield Problem("--out", message)


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    elif path.is_dir():
        yield from (file for file in path.rglob("*") if file.is_file())
