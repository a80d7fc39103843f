"""Grades the terms of a layer's activations against :func:`pdtlib.plan.activations.layer_tensors`."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from pdtlib.exercises.compare import same_int, shown, wrong_type
from pdtlib.exercises.report import Check
from pdtlib.exercises.source import ReaderCode, ReaderError, call
from pdtlib.plan.activations import SavedTensor, Setting, layer_tensors
from pdtlib.plan.spec import Model


@dataclass(frozen=True)
class Case:
    """A GPT layer with dropout, cut over ``tp`` ranks."""

    title: str
    batch: int
    seq: int
    hidden: int
    heads: int
    tp: int
    sequence_parallel: bool

    def tensors(self) -> tuple[SavedTensor, ...]:
        model = Model(layers=1, hidden=self.hidden, heads=self.heads, vocab=100, seq=self.seq, dropout=0.1)
        setting = Setting(
            micro_batch=self.batch, seq=self.seq, tp=self.tp, sequence_parallel=self.sequence_parallel
        )
        return layer_tensors(model, setting=setting)

    def told(self) -> str:
        return (
            f"With batch={self.batch}, seq={self.seq}, hidden={self.hidden}, heads={self.heads}, "
            f"tp={self.tp}, sequence_parallel={self.sequence_parallel}."
        )


def grade(code: ReaderCode, rng: random.Random) -> Iterator[Check]:
    """GPT-3's layer, then hidden sizes; each with and without sequence parallelism."""
    yield from _grade(code, Case("GPT-3's layer on one rank", 1, 2048, 12288, 96, 1, False))
    for sequence in (False, True):
        name = "with" if sequence else "without"
        yield from _grade(code, Case(f"GPT-3's layer on 8 ranks, {name} SP", 1, 2048, 12288, 96, 8, sequence))
    for sequence in (False, True):
        tp = rng.choice((2, 4))
        heads = tp * rng.randint(2, 5)
        case = Case(
            f"hidden sizes, {'with' if sequence else 'without'} SP",
            rng.randint(1, 3),
            tp * rng.randint(5, 9),
            heads * 4 * rng.randint(1, 3),
            heads,
            tp,
            sequence,
        )
        yield from _grade(code, case)


def _grade(code: ReaderCode, case: Case) -> Iterator[Check]:
    try:
        got = call(
            code.function("saved_terms"),
            case.batch,
            case.seq,
            case.hidden,
            case.heads,
            case.tp,
            case.sequence_parallel,
        )
    except ReaderError as error:
        yield Check(name=f"{case.title}: runs", passed=False, message=f"{error}\n{case.told()}")
        return
    if not isinstance(got, dict):
        yield Check(
            name=f"{case.title}: a dict", passed=False, got=shown(got), message=wrong_type(got, "a dict")
        )
        return
    expected = {tensor.name: int(tensor.bytes) for tensor in case.tensors()}
    missing = [name for name in expected if name not in got]
    more = [str(name) for name in got if name not in expected]
    yield Check(
        name=f"{case.title}: every term, and no other",
        passed=not missing and not more,
        message="; ".join(
            text
            for text in (
                f"missing: {', '.join(missing)}" if missing else "",
                f"unknown: {', '.join(more)}" if more else "",
            )
            if text
        ),
    )
    yield _terms(case, got)
    if not missing and all(type(value) is int for value in got.values()):
        yield same_int(
            f"{case.title}: the sum",
            expected=sum(expected.values()),
            got=sum(got[name] for name in expected),
            message=f"The terms do not add up to the closed form. {case.told()}",
        )


def _terms(case: Case, got: dict[object, object]) -> Check:
    name = f"{case.title}: each term"
    for tensor in case.tensors():
        value = got.get(tensor.name)
        if tensor.name not in got or (type(value) is int and value == tensor.bytes):
            continue
        return Check(
            name=name,
            passed=False,
            expected=f"{tensor.name}: {int(tensor.bytes):,}",
            got=f"{tensor.name}: {shown(value)}",
            message=f"{_lesson(case, tensor, value)} {case.told()}",
        )
    return Check(name=name, passed=True)


def _lesson(case: Case, tensor: SavedTensor, value: object) -> str:
    if type(value) is not int:
        return wrong_type(value, "an int")
    right, tp = int(tensor.bytes), case.tp
    if value * tp == right and tp > 1:
        return (
            "Outside the cut regions every rank has the whole tensor, unless sequence parallelism divides it."
        )
    if value == right * tp and tp > 1:
        divided = "by heads or columns" if tensor.split == "tensor" else "along the sequence"
        return f"Each rank has only its part of this tensor, {divided}."
    if "mask" in tensor.name and value == 2 * right:
        return "A dropout mask takes one byte an element."
    if 2 * value == right:
        return "An element takes two bytes in 16 bit."
    if tensor.name in ("gelu input", "down input") and 4 * value == right:
        return "Inside the MLP there are 4 × hidden numbers a token."
    if "softmax" in tensor.name and value * case.heads == right:
        return "Every head has scores of its own."
    return "A block has batch × seq × hidden elements, the scores batch × heads × seq × seq."
