"""Grades a chosen layout against the best of all layouts of its kind, and counts the predictions."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

from pdtlib.exercises.compare import shown, wrong_type
from pdtlib.exercises.report import Check
from pdtlib.exercises.source import ReaderCode, ReaderError, call
from pdtlib.plan.job import JobError, from_dict
from pdtlib.plan.presets import GPUS
from pdtlib.plan.time.constants import USUAL_SOFTWARE, system_of
from pdtlib.plan.time.footprint import footprint
from pdtlib.plan.time.step import step_time

MOST_CALLS = 40
WITHIN = 0.05
FIELDS = {
    "dp": "parallel",
    "tp": "parallel",
    "pp": "parallel",
    "zero_stage": "train",
    "micro_batch": "train",
    "recompute": "train",
}
CLUSTER, GPU, NODE = "dgx-a100", "A100-SXM4-80", 8


@dataclass(frozen=True)
class Case:
    """A model, a number of GPUs and a batch."""

    preset: str
    gpus: int
    batch: int

    def __str__(self) -> str:
        return f"{self.preset} on {self.gpus} GPUs, {self.batch} sequences"


@cache
def predicted(case: Case, layout: tuple[tuple[str, Any], ...]) -> tuple[float, float] | None:
    """Seconds and bytes of a layout; None if it cannot run."""
    tables: dict[str, dict[str, Any]] = {
        "model": {"preset": case.preset},
        "train": {"global_batch": case.batch},
        "parallel": {},
        "hardware": {"cluster": CLUSTER, "n_gpus": case.gpus},
    }
    for name, value in layout:
        tables[FIELDS[name]][name] = value
    tables["train"]["sequence_parallel"] = tables["parallel"]["tp"] != 1
    if tables["parallel"]["pp"] != 1 and tables["train"]["zero_stage"] not in (0, 1):
        return None
    try:
        job = from_dict(tables)
    except JobError:
        return None
    return step_time(job, system=system_of(job)).step_s, footprint(job, software=USUAL_SOFTWARE)


class Predict:
    """What the reader calls: counts, and remembers nothing."""

    memory_bytes = GPUS[GPU].memory_bytes

    def __init__(self, case: Case) -> None:
        self.case = case
        self.calls = 0

    def __call__(self, layout: Mapping[str, Any]) -> tuple[float, float] | None:
        self.calls += 1
        if self.calls > MOST_CALLS:
            raise RuntimeError(f"more than {MOST_CALLS} predictions")
        missing = [name for name in FIELDS if name not in layout]
        if missing:
            raise ValueError(f"the layout lacks {', '.join(missing)}")
        return predicted(self.case, _frozen(layout))


def _frozen(layout: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((name, layout[name]) for name in FIELDS)


@cache
def best_s(case: Case) -> float:
    """The shortest step of all layouts of the exercise's kind that fit."""
    powers = (1, 2, 4, 8, 16)
    found = []
    for tp, pp, zero, micro_batch, recompute in product(
        powers[:4], powers, (0, 1, 2, 3), powers, ("none", "full")
    ):
        if case.gpus % (tp * pp):
            continue
        layout = (case.gpus // (tp * pp), tp, pp, zero, micro_batch, recompute)
        if case.batch % (micro_batch * layout[0]) or (zero == 0 and layout[0] > 1):
            continue
        answer = predicted(case, tuple(zip(FIELDS, layout, strict=True)))
        if answer is not None and answer[1] <= Predict.memory_bytes:
            found.append(answer[0])
    return min(found)


def cases(rng: random.Random) -> list[Case]:
    """A model that fits whole, one that fits where it is sharded, one that must be cut or recomputed."""
    return [
        Case("llama2-7b", 8, rng.choice((32, 64))),
        Case("llama2-13b", 8, rng.choice((32, 64))),
        Case("qwen2.5-32b", 16, 64),
    ]


def grade(code: ReaderCode, rng: random.Random) -> Iterator[Check]:
    """Per case: a layout that runs, that fits, and that is within 5 % of the best."""
    choose = code.function("choose")
    for case in cases(rng):
        predict = Predict(case)
        try:
            got = call(choose, case.gpus, NODE, case.batch, predict)
        except ReaderError as error:
            yield Check(name=f"{case}: runs", passed=False, message=str(error))
            continue
        yield _judge(case, got)


def _judge(case: Case, got: object) -> Check:
    name = f"{case}: within {WITHIN:.0%} of the best"
    if not isinstance(got, dict) or any(key not in got for key in FIELDS):
        message = wrong_type(got, f"a dict of {', '.join(FIELDS)}")
        return Check(name=name, passed=False, got=shown(got), message=message)
    answer = predicted(case, _frozen(got))
    told = ", ".join(f"{key} {got[key]}" for key in FIELDS)
    if answer is None:
        return Check(name=name, passed=False, got=told, message="This layout cannot run: predict says None.")
    seconds, held = answer
    if held > Predict.memory_bytes:
        message = f"It needs {held / 1e9:.1f} GB, and a GPU has {Predict.memory_bytes / 1e9:.0f}."
        return Check(name=name, passed=False, got=told, message=message)
    behind = seconds / best_s(case) - 1
    return Check(
        name=name,
        passed=behind <= WITHIN,
        expected=f"at most {best_s(case) * (1 + WITHIN):.2f} s",
        got=f"{seconds:.2f} s: {told}",
        message=f"{behind:.0%} slower than the best. {_lesson(got)}",
    )


def _lesson(got: Mapping[str, Any]) -> str:
    if got["recompute"] == "full":
        return "It recomputes: does a layout that holds less fit without?"
    if got["pp"] > 1:
        return "A pipeline idles while it fills: are there layouts without one that fit?"
    if got["tp"] > 1:
        return "Tensor parallelism talks in every layer: does a smaller degree fit?"
    return "Other micro-batches or ZeRO stages are faster."
