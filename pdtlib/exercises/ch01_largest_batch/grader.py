"""Grades the largest micro-batch against :mod:`pdtlib.plan.activations` and :mod:`pdtlib.plan.states`."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from pdtlib.exercises.compare import same_int
from pdtlib.exercises.report import Check
from pdtlib.exercises.source import ReaderCode, ReaderError, call
from pdtlib.plan import presets
from pdtlib.plan.activations import Setting, layer_bytes, logits_bytes
from pdtlib.plan.params import count
from pdtlib.plan.spec import Model
from pdtlib.plan.states import ZERO, zero_state_bytes

RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True)
class Case:
    title: str
    model: Model
    num_params: int
    capacity_bytes: int
    recompute: str

    @property
    def states(self) -> int:
        return int(zero_state_bytes(self.num_params, dp=1, stage=0).total)

    @property
    def expected(self) -> int:
        return max(0, (self.capacity_bytes - self.states) // per_sequence(self.model, self.recompute))


def _layer(model: Model, recompute: str) -> int:
    """Bytes that one layer keeps for one sequence."""
    return int(layer_bytes(model, setting=Setting(seq=model.seq, recompute=recompute)))


def _activations(model: Model, recompute: str) -> int:
    if recompute == "full":
        return (model.layers - 1) * _layer(model, "full") + _layer(model, "none")
    return model.layers * _layer(model, recompute)


def per_sequence(model: Model, recompute: str) -> int:
    """Bytes of activations and logits for one sequence."""
    return _activations(model, recompute) + int(logits_bytes(model.seq, vocab=model.vocab))


def _drawn(rng: random.Random) -> Model:
    heads = rng.choice((5, 8, 12, 20))
    return Model(
        layers=rng.randint(3, 48),
        hidden=heads * rng.choice((32, 64, 80)),
        heads=heads,
        vocab=rng.randint(5_000, 60_000),
        seq=rng.randint(200, 3_000),
        dropout=0.1,
    )


def cases(rng: random.Random) -> Iterator[Case]:
    """Two that the statement names, then capacities that fit exactly, or miss by a byte, or lie between."""
    xl, big = presets.model("gpt2-xl"), presets.model("gpt3-175b")
    gpu = 80 * 10**9
    for recompute in RECOMPUTE:
        yield Case(f"GPT-2 XL on 80 GB, recompute {recompute}", xl, count(xl).total, gpu, recompute)
    yield Case("GPT-3 175B on 80 GB", big, count(big).total, gpu, "full")
    for recompute in RECOMPUTE:
        model = _drawn(rng)
        num_params = count(model).total
        cost, states = per_sequence(model, recompute), ZERO.total * num_params
        fits = states + rng.randint(100, 999) * cost
        told = f"hidden shape, recompute {recompute}"
        yield Case(f"{told}, fits to the last byte", model, num_params, fits, recompute)
        yield Case(f"{told}, one byte short", model, num_params, fits - 1, recompute)
        between = fits + rng.randrange(cost // 4, cost // 2)
        yield Case(f"{told}, with room to spare", model, num_params, between, recompute)


def grade(code: ReaderCode, rng: random.Random) -> Iterator[Check]:
    """One check a case."""
    for case in cases(rng):
        arguments = replace(case.model), case.num_params, case.capacity_bytes, case.recompute
        try:
            got = call(code.function("largest_micro_batch"), *arguments)
        except ReaderError as error:
            yield Check(name=f"{case.title}: runs", passed=False, message=str(error))
            continue
        check = same_int(case.title, expected=case.expected, got=got)
        if not check.passed and not check.message:
            check = replace(check, message=f"{diagnose(case, got)}\n{_told(case)}")
        yield check


def _told(case: Case) -> str:
    model = case.model
    return (
        f"The case: layers={model.layers}, hidden={model.hidden}, heads={model.heads}, seq={model.seq}, "
        f"vocab={model.vocab}, num_params={case.num_params}, capacity_bytes={case.capacity_bytes}, "
        f"recompute={case.recompute!r}"
    )


def diagnose(case: Case, got: int) -> str:
    """The slip whose answer is ``got``."""
    model, capacity = case.model, case.capacity_bytes
    if got < 0:
        return "A micro-batch is never negative: when the states alone are too large, return 0."
    activations, logits = _activations(model, case.recompute), int(logits_bytes(model.seq, vocab=model.vocab))
    room, cost = capacity - case.states, activations + logits
    inputs_only = model.layers * _layer(model, "full")
    slips = [
        ("the states are left out: they take (2 + 2 + 12) bytes a parameter.", capacity, cost),
        ("only the weights are counted: gradients and Adam take another 14 bytes a parameter.", 2, None),
        ("the optimizer is left out: master copy and moments take 12 bytes a parameter.", 4, None),
        ("the fp32 master copy is left out: Adam takes 12 bytes a parameter, not 8.", 12, None),
        ("the logits are left out: 4·s·v bytes a sequence, more than many a layer.", room, activations),
        (
            "the logits are in 16 bit: the loss needs them in fp32, 4 bytes each.",
            room,
            activations + logits // 2,
        ),
        (
            "the attention scores are left out: 5·a·s² bytes a layer.",
            room,
            model.layers * _layer(model, "selective") + logits,
        ),
        ("one layer is counted: multiply by model.layers.", room, _layer(model, case.recompute) + logits),
        ("recompute is ignored.", room, _activations(model, "none") + logits),
        (
            "with full recomputation one layer at a time holds all its activations.",
            room,
            inputs_only + logits,
        ),
        (
            "all layers hold their input, and the one that runs again as well.",
            room,
            cost + 2 * model.seq * model.hidden,
        ),
    ]
    for text, have, need in slips:
        if need is None:
            have, need = capacity - have * case.num_params, cost
        if need and case.expected != have // need == got:
            return f"This is what comes out when {text}"
    if got == case.expected + 1:
        return (
            f"{got:,} sequences need {got * cost + case.states:,} bytes, more than the capacity: round down."
        )
    if got == case.expected - 1:
        return (
            f"One more fits: {case.expected:,} sequences need {case.expected * cost + case.states:,} bytes. "
            "Stay with integers: // and no floats."
        )
    low = "few" if got < case.expected else "many"
    return (
        f"Too {low}. Fixed: {case.states:,} bytes of states. A sequence: {activations:,} bytes of "
        f"activations and {logits:,} of logits."
    )
