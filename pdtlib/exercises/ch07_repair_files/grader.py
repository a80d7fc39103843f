"""Grades repaired DeepSpeed files: the linter's verdicts first, then what the author wanted."""

import copy
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pdtlib.exercises.compare import shown, wrong_type
from pdtlib.exercises.report import Check
from pdtlib.exercises.source import ReaderCode, ReaderError, call
from pdtlib.plan.lint import lint_deepspeed

Config = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A broken file and what it should become on ``dp`` ranks."""

    title: str
    broken: Config
    wanted: Config
    dp: int


def cases(rng: random.Random) -> list[Case]:
    """The five faults, all that can meet in one file, and a file without any."""
    micro, steps, dp = rng.randint(1, 8), rng.randint(2, 16), rng.choice((2, 4, 8, 16))
    bucket, group = rng.randint(2, 9), rng.randint(1, 4)
    tensor, stages = rng.choice((2, 4, 8)), rng.choice((2, 4, 8))
    base: Config = {
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": steps,
        "bf16": {"enabled": True},
    }
    numbers = {"sub_group_size": group * 10**9, "reduce_bucket_size": bucket * 10**8}
    texts = {"sub_group_size": f"{group}e9", "reduce_bucket_size": f"{bucket}e8"}
    piped = {**base, "pipeline": {"stages": stages}}
    buckets = {"reduce_bucket_size": bucket * 10**8}

    def zero(config: Config, stage: int, **more: Any) -> Config:
        return {**config, "zero_optimization": {"stage": stage, **more}}

    return [
        Case(
            "from YAML, with a wrapper",
            {"deepspeed": zero(base, 3, **texts)},
            zero(base, 3, **numbers),
            dp,
        ),
        Case(
            "a batch that does not fit",
            {**zero(base, 2), "train_batch_size": micro * steps * dp + rng.randint(1, micro * steps * dp)},
            {**zero(base, 2), "train_batch_size": micro * steps * dp},
            dp,
        ),
        Case("a pipeline with ZeRO-3", zero(piped, 3, **numbers), zero(piped, 1, **buckets), dp),
        Case("a pipeline with ZeRO-2", zero(piped, 2, **buckets), zero(piped, 1, **buckets), dp),
        Case("two formats", {**zero(base, 1), "fp16": {"enabled": True}}, zero(base, 1), dp),
        Case(
            "old and wrong names",
            {**zero(base, 2, cpu_offload=True), "tensor_parallel": {"size": tensor}},
            {
                **zero(base, 2, offload_optimizer={"device": "cpu"}),
                "tensor_parallel": {"autotp_size": tensor},
            },
            dp,
        ),
        Case("an offload that was off", zero(base, 3, cpu_offload=False), zero(base, 3), dp),
        Case(
            "several faults at once",
            {"deepspeed": {**zero(piped, 3, cpu_offload=False, **texts), "fp16": {"enabled": True}}},
            zero(piped, 1, **buckets),
            dp,
        ),
        Case("nothing wrong", zero(piped, 1, **buckets), zero(piped, 1, **buckets), dp),
    ]


def grade(code: ReaderCode, rng: random.Random) -> Iterator[Check]:
    """Per file: it starts as written, and means what was wanted."""
    repair = code.function("repair")
    for case in cases(rng):
        given = copy.deepcopy(case.broken)
        try:
            got = call(repair, given, case.dp)
        except ReaderError as error:
            message = f"{error}\nThe file: {json.dumps(case.broken)}"
            yield Check(name=f"{case.title}: runs", passed=False, message=message)
            continue
        yield from _judge(case, got)
        yield Check(
            name=f"{case.title}: the given dict is as before",
            passed=given == case.broken,
            message="Work on a copy: copy.deepcopy(config).",
        )


def _judge(case: Case, got: object) -> Iterator[Check]:
    name = f"{case.title}: DeepSpeed starts, and reads every key"
    if not isinstance(got, dict):
        yield Check(name=name, passed=False, got=shown(got), message=wrong_type(got, "a dict"))
        return
    try:
        text = json.dumps(got)
    except (TypeError, ValueError) as error:
        yield Check(name=name, passed=False, message=f"This is no JSON: {error}")
        return
    faults = [verdict for verdict in lint_deepspeed(text) if verdict.verdict != "ok"]
    first = faults[0] if faults else None
    yield Check(
        name=name,
        passed=first is None,
        got=f"{first.key or 'the file'}: {first.verdict}" if first else "",
        message=f"{first.message}\nThe file: {json.dumps(case.broken)}" if first else "",
    )
    path = _difference(case.wanted, got)
    yield Check(
        name=f"{case.title}: means what was wanted",
        passed=path is None,
        expected=_value(case.wanted, path) if path else "",
        got=_value(got, path) if path else "",
        message=f"{_lesson(path)} (dp={case.dp}; the file: {json.dumps(case.broken)})" if path else "",
    )


def _difference(wanted: Mapping[str, Any], got: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The path of the first key that differs, or None."""
    for key in [*wanted, *(key for key in got if key not in wanted)]:
        mine, theirs = wanted.get(key), got.get(key)
        if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
            below = _difference(mine, theirs)
            if below is not None:
                return (key, *below)
        elif key not in wanted or key not in got or mine != theirs:
            return (key,)
    return None


def _value(config: Mapping[str, Any], path: tuple[str, ...]) -> str:
    found: Any = config
    for name in path:
        found = found.get(name, "not there") if isinstance(found, Mapping) else "not there"
    return f"{'.'.join(path)}: {shown(found)}"


def _lesson(path: tuple[str, ...]) -> str:
    return {
        "train_batch_size": "The batch is micro-batch × accumulation × data-parallel ranks.",
        "stage": "A pipeline takes ZeRO-1, which still shards the optimizer; and only a pipeline needs it.",
        "fp16": "The author wants bf16.",
        "offload_optimizer": "Offload only what the author wanted to be offloaded.",
        "reduce_bucket_size": "A number keeps its value: 5e8 is 500,000,000.",
        "sub_group_size": "Only stage 3 reads sub_group_size, and there its value stays.",
    }.get(path[-1], "Everything else stays as it was.")
