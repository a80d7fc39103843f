"""Grades a descent with late gradients value by value, and its limit against theory and against trying."""

import random
from collections.abc import Iterator

from pdtlib.exercises.compare import close, differing, shown, wrong_type
from pdtlib.exercises.report import Check
from pdtlib.exercises.source import ReaderCode, ReaderError, call
from pdtlib.plan.reliability import stable_step

WITHIN = 1e-3


def grade(code: ReaderCode, rng: random.Random) -> Iterator[Check]:
    """Descents without, with little and with much delay; then the limit."""
    for delay in (0, 1, rng.randint(2, 6)):
        yield _descent(code, rng.uniform(0.05, 0.4), delay, rng.uniform(0.5, 2.0))
    for delay, curvature in (
        (0, 1.0),
        (1, 1.0),
        (3, 1.0),
        (7, 1.0),
        (15, 1.0),
        (0, rng.uniform(3, 9)),
        (rng.randint(8, 20), rng.uniform(0.1, 0.6)),
    ):
        yield _limit(code, delay, curvature)


def _expected(step: float, delay: int, curvature: float, updates: int) -> list[float]:
    x = [1.0] * (delay + 1)
    for _ in range(updates):
        x.append(x[-1] - step * curvature * x[-1 - delay])
    return x[delay:]


def _descent(code: ReaderCode, step: float, delay: int, curvature: float) -> Check:
    updates = 12 + 3 * delay
    name = f"descend, delay {delay}"
    told = f"With step={step:.3f}, delay={delay}, curvature={curvature:.3f}, updates={updates}."
    try:
        got = call(code.function("descend"), step, delay, curvature, updates)
    except ReaderError as error:
        return Check(name=name, passed=False, message=f"{error}\n{told}")
    expected = _expected(step, delay, curvature, updates)
    wrong = differing(expected, got, tolerance=1e-12)
    if wrong is None:
        return Check(name=name, passed=True)
    if wrong == -1:
        lesson = f"Return a list of {updates + 1} floats: the start, and x after each update."
        return Check(name=name, passed=False, got=shown(got), message=f"{lesson} {told}")
    return Check(
        name=name,
        passed=False,
        expected=f"x({wrong}) = {shown(expected[wrong])}",
        got=f"x({wrong}) = {shown(got[wrong])}",
        message=f"{_descent_lesson(got, step, delay, curvature, updates)} {told}",
    )


def _descent_lesson(got: list[float], step: float, delay: int, curvature: float, updates: int) -> str:
    def agrees(other: int) -> bool:
        return (
            other >= 0 and differing(_expected(step, other, curvature, updates), got, tolerance=1e-12) is None
        )

    if delay and agrees(0):
        return "These gradients are not late: take x from delay updates back."
    if agrees(delay + 1) or agrees(delay - 1):
        return "This delay is one off: with delay 0 the gradient is that of the current x."
    if differing(_expected(step, delay, 1.0, updates), got, tolerance=1e-12) is None:
        return "The gradient of a parabola with curvature λ is λ times x."
    return "Before the start x was 1.0 as well; each update subtracts step · curvature · x(n − delay)."


def _limit(code: ReaderCode, delay: int, curvature: float) -> Check:
    name = f"stable_step, delay {delay}, curvature {curvature:.3g}"
    try:
        got = call(code.function("stable_step"), delay, curvature)
    except ReaderError as error:
        return Check(name=name, passed=False, message=str(error))
    expected = stable_step(delay, curvature=curvature)
    if type(got) not in (int, float):
        return Check(name=name, passed=False, got=shown(got), message=wrong_type(got, "a float"))
    return Check(
        name=name,
        passed=close(1.0, got / expected, tolerance=WITHIN),
        expected=f"{expected:.5f}",
        got=f"{got:.5f}",
        message=_limit_lesson(got, delay, curvature),
    )


def _limit_lesson(got: float, delay: int, curvature: float) -> str:
    right = stable_step(delay, curvature=curvature)
    guesses = (
        (2 / curvature, "This is the limit without delay."),
        (
            2 / (delay + 1) / curvature,
            "2/(delay + 1) is a guess. For long delays the limit is π/2 over the delay.",
        ),
        (stable_step(delay), "Twice the curvature halves the step."),
        (right * curvature**2, "The step goes with one over the curvature: divide by it."),
        (right / 2, "Half of it: on the unit circle |z − 1| is 2 sin(θ/2)."),
        (stable_step(delay + 1, curvature=curvature), "This is the limit for one update more of delay."),
        (
            stable_step(max(0, delay - 1), curvature=curvature),
            "This is the limit for one update less of delay.",
        ),
    )
    for value, lesson in guesses:
        if close(1.0, got / value, tolerance=WITHIN):
            return lesson
    if got > right:
        return f"At {got:.4f} the descent grows. Let it run longer: near the limit it grows slowly."
    return f"At {got:.4f} it still shrinks: the limit is higher."
