"""Grades a simulated run with given failures to the second, and an interval by its expected time."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from pdtlib.exercises.compare import close, same_int, shown, wrong_type
from pdtlib.exercises.report import Check
from pdtlib.exercises.source import ReaderCode, ReaderError, call
from pdtlib.plan.reliability import best_interval, expected_wall_time, young_interval

WITHIN = 0.005
SHARES = (0.0001, 0.01, 0.1, 0.5)  # of the mean time between failures that a save takes


@dataclass(frozen=True)
class Case:
    """A run with its failures; ``lesson`` is what a wrong answer has usually overlooked."""

    title: str
    work: int
    interval: int
    save: int
    restart: int
    failures: tuple[int, ...]
    lesson: str

    def wall_time(self) -> int:
        now, done, coming = 0, 0, list(self.failures)
        while done < self.work:
            piece = min(self.interval, self.work - done)
            end = now + piece + self.save
            if not coming or end <= coming[0]:
                now, done = end, done + piece
                continue
            now = coming.pop(0)
            while coming and coming[0] < now + self.restart:
                now = coming.pop(0)
            now += self.restart
        return now

    def told(self) -> str:
        return (
            f"With work={self.work}, interval={self.interval}, save={self.save}, restart={self.restart}, "
            f"failures={list(self.failures)[:6]}{' …' if len(self.failures) > 6 else ''}."
        )


def cases(rng: random.Random) -> list[Case]:
    """One trap each, then random runs."""
    more = []
    for number in range(3):
        now, failures = 0, []
        for _ in range(40):
            now += rng.randint(20, 1500)
            failures.append(now)
        more.append(
            Case(
                f"a random run, {number + 1} of 3",
                rng.randint(3000, 5000),
                rng.randint(150, 400),
                rng.randint(5, 30),
                rng.randint(10, 120),
                tuple(failures),
                "Each failure counts once, and only when the clock gets there.",
            )
        )
    return [
        Case("no failure", 1000, 300, 10, 60, (), "Four pieces, and a save after each, also the last."),
        Case(
            "a failure in the middle of a piece",
            1000,
            300,
            10,
            60,
            (450,),
            "The work since the last finished save is lost; after the restart its piece begins again.",
        ),
        Case(
            "a failure during a save",
            1000,
            300,
            10,
            60,
            (305,),
            "A save that did not finish is worth nothing: the whole piece is lost.",
        ),
        Case(
            "a failure during a restart",
            1000,
            300,
            10,
            60,
            (450, 480),
            "A restart can fail, too: it begins again at the second failure.",
        ),
        Case(
            "a failure at the very end of a save",
            1000,
            300,
            10,
            60,
            (310,),
            "What ends at the moment of the failure has still been done.",
        ),
        Case(
            "failures after the end",
            1000,
            300,
            10,
            60,
            (5000,),
            "The run is over before this failure.",
        ),
        *more,
    ]


def grade(code: ReaderCode, rng: random.Random) -> Iterator[Check]:
    """Runs with given failures, then intervals for short and long saves."""
    for case in cases(rng):
        try:
            got = call(
                code.function("wall_time"),
                case.work,
                case.interval,
                case.save,
                case.restart,
                list(case.failures),
            )
        except ReaderError as error:
            yield Check(name=case.title, passed=False, message=f"{error}\n{case.told()}")
            continue
        yield same_int(case.title, expected=case.wall_time(), got=got, message=f"{case.lesson} {case.told()}")
    for share in SHARES:
        mtbf = rng.uniform(1e3, 1e6)
        yield _interval(code, mtbf, share * mtbf)


def _interval(code: ReaderCode, mtbf: float, save: float) -> Check:
    name = f"best_interval, a save takes {save / mtbf:g} of the time between failures"
    told = f"With mtbf={mtbf:.0f}, save={save:.1f}."
    try:
        got = call(code.function("best_interval"), mtbf, save)
    except ReaderError as error:
        return Check(name=name, passed=False, message=f"{error}\n{told}")
    if type(got) not in (int, float):
        return Check(name=name, passed=False, got=shown(got), message=wrong_type(got, "a float"))
    if not 0 < got < float("inf"):
        return Check(
            name=name, passed=False, got=shown(got), message=f"An interval is a time above 0. {told}"
        )
    best = best_interval(mtbf_s=mtbf, save_s=save)
    shortest, with_it = (
        expected_wall_time(1.0, mtbf_s=mtbf, save_s=save, interval_s=interval) for interval in (best, got)
    )
    return Check(
        name=name,
        passed=with_it <= (1 + WITHIN) * shortest,
        expected=f"{best:.1f} s",
        got=f"{got:.1f} s",
        message=f"The run takes {with_it / shortest - 1:.1%} longer than it must. "
        f"{_lesson(got, mtbf, save)} {told}",
    )


def _lesson(got: float, mtbf: float, save: float) -> str:
    young = young_interval(mtbf_s=mtbf, save_s=save)
    if close(1.0, got / young, tolerance=1e-6):
        return "Young's rule supposes a save that is short beside the time between failures."
    if close(1.0, got / young * 2**0.5, tolerance=0.02):
        return "The 2 in √(2 δ M) is missing: on average a failure takes half an interval."
    return "Too short an interval saves too often." if got < young else "Too long an interval loses too much."
