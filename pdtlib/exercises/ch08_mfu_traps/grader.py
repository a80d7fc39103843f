"""Grades MFU and HFU against :mod:`pdtlib.plan.flops`, and names the trap that an answer fell into."""

import random
from collections.abc import Iterator
from typing import Any

from pdtlib.exercises.compare import close, shown
from pdtlib.exercises.report import Check
from pdtlib.exercises.source import ReaderCode, ReaderError, call
from pdtlib.plan import flops, params, presets
from pdtlib.plan.presets import GPUS
from pdtlib.plan.spec import Model

TOLERANCE = 1e-9
RECOMPUTE = ("none", "selective", "full")


def described(model: Model, recompute: str, rng: random.Random) -> tuple[dict[str, Any], float, float]:
    """A run as the reader gets it, with its MFU and HFU."""
    gpu = GPUS[rng.choice(("A100-SXM4-80", "H100-SXM5"))]
    gpus, batch = rng.choice((64, 128, 256, 512)), rng.choice((256, 512, 1024))
    tokens = batch * model.seq
    work = tokens * flops.model_flops_per_token(model)
    step_ms = round(1e3 * work / (gpus * gpu.peak_flops * rng.uniform(0.2, 0.5)))
    executed = tokens * flops.hardware_flops_per_token(model, recompute=recompute)
    forward = flops.forward_per_token(model)
    weights = round((forward.linear + forward.logits) / 2)
    run = {
        "weights": weights,
        "all_weights": params.count(model).total,
        "head_weights": round(forward.logits / 2),
        "layers": model.layers,
        "width": model.heads * model.head_dim,
        "seq": model.seq,
        "global_batch": batch,
        "step_ms": step_ms,
        "gpus": gpus,
        "peak_tflops": gpu.peak_flops / 1e12,
        "sparse_tflops": 2 * gpu.peak_flops / 1e12,
        "recompute": recompute,
    }
    shares = [
        flops.mfu(counted, seconds=step_ms / 1e3, num_gpus=gpus, peak_flops=gpu.peak_flops)
        for counted in (work, executed)
    ]
    return run, shares[0], shares[1]


def grade(code: ReaderCode, rng: random.Random) -> Iterator[Check]:
    """Three published models, each with another recomputation, then hidden sizes."""
    named = [("llama3-8b", "none"), ("gpt3-175b", "selective"), ("mixtral-8x7b", "full")]
    for name, recompute in named:
        yield from _grade(code, f"{name}, recomputation {recompute}", presets.model(name), recompute, rng)
    for recompute in RECOMPUTE:
        heads = rng.choice((16, 24, 32))
        model = Model(
            layers=rng.randint(12, 60),
            hidden=128 * heads,
            heads=heads,
            vocab=rng.choice((32000, 50304, 128256)),
            seq=rng.choice((2048, 4096, 8192)),
        )
        yield from _grade(code, f"hidden sizes, recomputation {recompute}", model, recompute, rng)


def _grade(code: ReaderCode, title: str, model: Model, recompute: str, rng: random.Random) -> Iterator[Check]:
    run, mfu, hfu = described(model, recompute, rng)
    try:
        got = call(code.function("utilisation"), dict(run))
    except ReaderError as error:
        yield Check(name=f"{title}: runs", passed=False, message=f"{error}\nWith run={run}.")
        return
    if not isinstance(got, tuple | list) or len(got) != 2:
        yield Check(
            name=f"{title}: a pair", passed=False, got=shown(got), message="Return (mfu, hfu), two floats."
        )
        return
    for name, right, value in zip(("MFU", "HFU"), (mfu, hfu), got, strict=True):
        yield Check(
            name=f"{title}: {name}",
            passed=close(right, value, tolerance=TOLERANCE),
            expected=shown(right),
            got=shown(value),
            message=f"{_lesson(run, name, right, value, mfu=mfu, hfu=hfu)} With run={run}.",
        )


def _lesson(run: dict[str, Any], name: str, right: float, value: object, *, mfu: float, hfu: float) -> str:
    """The trap whose factor separates the answer from the right one."""
    if type(value) not in (int, float):
        return "A utilisation is a float."
    assert isinstance(value, int | float)
    ratio = value / right

    def is_near(factor: float) -> bool:
        return abs(ratio / factor - 1) < 1e-6

    attention = 4 * run["layers"] * run["seq"] * run["width"]
    forward = 2 * run["weights"] + attention
    for factor, lesson in (
        (run["gpus"], "Divide by the peak of all GPUs: tokens and time are those of the whole job."),
        (1e-3, "step_ms is in milliseconds."),
        (1e3, "step_ms is in milliseconds: 1000 of them are a second."),
        (0.5, "Nothing here has structured zeros: the dense peak counts."),
        (100, "A share, not a percentage."),
        (1 / 3, "A backward costs two forwards, so a step costs three."),
        (2 * run["weights"] / forward, "Attention is missing: 4 · layers · seq · width a token, forwards."),
        ((forward - attention / 2) / forward, "The whole attention square counts here, not its half."),
    ):
        if name == "MFU" and is_near(factor):
            return lesson
    with_all = (2 * run["all_weights"] + attention) / forward
    if name == "MFU" and is_near(with_all):
        return (
            "Only the weights that a token is multiplied with count, not experts that sat idle or look-ups."
        )
    if name == "MFU" and close(hfu, value, tolerance=1e-6):
        return "What runs twice is no model FLOP: MFU does not count recomputation."
    if name == "HFU" and close(mfu, value, tolerance=1e-6):
        return "HFU counts what is executed, recomputation too."
    if name == "HFU" and run["recompute"] == "full":
        twice = (3 * forward + forward) / (3 * forward) * mfu
        if close(twice, value, tolerance=1e-6):
            return "Full recomputation runs the layers again, not the head."
    return "Work of a token, times tokens of the step, over GPUs × seconds × peak."
