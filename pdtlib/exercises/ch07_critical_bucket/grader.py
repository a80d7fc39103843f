"""Grades the critical bucket size and the exposed time against the simulated timeline of buckets."""

import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from pdtlib.exercises.compare import close, same_float, shown
from pdtlib.exercises.report import Check
from pdtlib.exercises.source import ReaderCode, ReaderError, call
from pdtlib.plan.comm import ring_steps, sent_bytes
from pdtlib.plan.overlap import bucket_timeline

TOLERANCE = 1e-9
MB = 10**6


@dataclass(frozen=True)
class Case:
    """A backward pass and a link."""

    grad_bytes: int
    backward_s: float
    ranks: int
    bytes_per_s: float
    latency_s: float

    def told(self) -> str:
        return "With " + ", ".join(f"{name}={value:g}" for name, value in asdict(self).items()) + "."

    def critical(self) -> float | None:
        """Where the two lines cross: a byte made, a byte sent, and the latencies of a message."""
        if self.ranks == 1:
            return 0.0
        spare = (
            self.backward_s / self.grad_bytes - sent_bytes("all_reduce", 1.0, self.ranks) / self.bytes_per_s
        )
        return ring_steps("all_reduce", self.ranks) * self.latency_s / spare if spare > 0 else None

    def exposed(self, bucket: int) -> float:
        count = self.grad_bytes // bucket
        return bucket_timeline(
            [bucket] * count,
            limit_bytes=bucket,
            backward_s=self.backward_s,
            dp=self.ranks,
            bytes_per_s=self.bytes_per_s,
            latency_s=self.latency_s,
        ).exposed_s


def cases(rng: random.Random) -> list[tuple[str, Case]]:
    """A fast link, a slow one, many ranks, one rank."""

    def drawn(ranks: int, rate: float) -> Case:
        size = 480 * MB * rng.randint(1, 8)
        sends_s = sent_bytes("all_reduce", size, ranks) / 25e9 if ranks > 1 else 0.1
        return Case(size, sends_s * rate, ranks, 25e9, rng.choice((5e-6, 1e-5, 5e-5)))

    return [
        ("a link with room to spare", drawn(rng.randint(3, 16), rng.uniform(2, 5))),
        ("many ranks", drawn(rng.choice((128, 256, 500)), rng.uniform(1.2, 3))),
        ("a link that is hardly fast enough", drawn(rng.randint(2, 8), rng.uniform(1.05, 1.2))),
        ("a link that is too slow", drawn(rng.randint(2, 64), rng.uniform(0.3, 0.9))),
        ("one rank", drawn(1, 1.0)),
    ]


def grade(code: ReaderCode, rng: random.Random) -> Iterator[Check]:
    """Per case: the critical size, and the exposed time at four sizes around it."""
    critical, exposed = code.function("critical_bucket"), code.function("exposed_s")
    for title, case in cases(rng):
        numbers = tuple(asdict(case).values())
        try:
            yield _critical(title, case, call(critical, *numbers))
            yield _exposed(title, case, [(b, call(exposed, b, *numbers)) for b in _sizes(case)])
        except ReaderError as error:
            yield Check(name=f"{title}: runs", passed=False, message=f"{error}\n{case.told()}")


def _sizes(case: Case) -> list[int]:
    return [case.grad_bytes // count for count in (1, 8, 60, 480)]


def _critical(title: str, case: Case, got: object) -> Check:
    name, expected = f"{title}: the critical size", case.critical()
    if expected is None or got is None:
        return Check(
            name=name,
            passed=got is None and expected is None,
            expected=shown(expected),
            got=shown(got),
            message=f"{'No size is large enough' if expected is None else 'There is such a size'}: compare "
            f"the time to make a byte with the time to send it. {case.told()}",
        )
    return same_float(
        name,
        expected=expected,
        got=got,
        tolerance=TOLERANCE,
        message=f"{_lesson(case, expected, got)} {case.told()}",
    )


def _lesson(case: Case, expected: float, got: object) -> str:
    if not isinstance(got, float | int):
        return ""
    steps = 2 * (case.ranks - 1)
    made = case.backward_s / case.grad_bytes
    if case.ranks > 1 and close(steps * case.latency_s / made, got, tolerance=TOLERANCE):
        return "This leaves out the time that the bytes take."
    if case.ranks > 1 and close(expected / steps, got, tolerance=TOLERANCE):
        return "A ring all-reduce has 2(N−1) steps, each with its latency."
    if case.ranks > 1 and close(expected / 2, got, tolerance=TOLERANCE):
        return "An all-reduce goes round twice: N−1 steps to add up, N−1 to hand out."
    return "Made: S·T/G. Sent: 2(N−1)α + 2(N−1)/N · S/B. They are equal at the critical size."


def _exposed(title: str, case: Case, found: list[tuple[int, object]]) -> Check:
    name = f"{title}: exposed time"
    for bucket, got in found:
        expected = case.exposed(bucket)
        if not close(expected, got, tolerance=TOLERANCE):
            count = case.grad_bytes // bucket
            cost = (expected + case.backward_s) if count == 1 else None
            late = cost is not None and isinstance(got, float) and got < expected
            lesson = (
                "A single bucket leaves when the backward pass is over, so all of it is exposed."
                if late
                else "A bucket waits for its last gradient and for the bucket before it, and the last one "
                "always ends after the backward pass."
            )
            return Check(
                name=name,
                passed=False,
                expected=shown(expected),
                got=shown(got),
                message=f"{count} buckets of {bucket:,} bytes. {lesson} {case.told()}",
            )
    return Check(name=name, passed=True)
