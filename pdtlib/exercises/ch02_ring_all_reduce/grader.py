"""Grades a ring all-reduce: sums, bytes, neighbours, messages; lengths that N does not divide.

Ring all-reduce sends 2(N - 1)/N times the message per rank (Patarasuk and Yuan, 2009).
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pdtlib.exercises.compare import close, shown
from pdtlib.exercises.report import Check
from pdtlib.exercises.simulator import VALUE_BYTES, Comm, Outcome, run
from pdtlib.exercises.source import ReaderCode, ReaderError

TOLERANCE = 1e-12


@dataclass(frozen=True)
class Case:
    title: str
    data: tuple[tuple[float, ...], ...]

    @property
    def world_size(self) -> int:
        return len(self.data)

    @property
    def length(self) -> int:
        return len(self.data[0])


def _integers(rng: random.Random, world_size: int, length: int) -> tuple[tuple[float, ...], ...]:
    """Whole numbers: their sums are exact in any order."""
    return tuple(tuple(float(rng.randint(-999, 999)) for _ in range(length)) for _ in range(world_size))


def cases(rng: random.Random) -> list[Case]:
    """Hidden sizes: N divides the length, does not, exceeds it; N = 1; fractions."""
    world_size, odd = rng.choice((4, 6, 8)), rng.choice((3, 5, 7))
    uneven = odd * rng.randint(2, 6) + rng.randint(1, odd - 1)
    return [
        Case("2 ranks", _integers(rng, 2, 2 * rng.randint(2, 5))),
        Case(
            f"{world_size} ranks, even chunks",
            _integers(rng, world_size, world_size * rng.randint(2, 6)),
        ),
        Case(f"{odd} ranks, {uneven} numbers: uneven chunks", _integers(rng, odd, uneven)),
        Case("5 ranks, 3 numbers: fewer than ranks", _integers(rng, 5, 3)),
        Case("a single rank", _integers(rng, 1, rng.randint(3, 9))),
        Case(
            "3 ranks, fractions in float64",
            tuple(tuple(rng.uniform(-1, 1) for _ in range(11)) for _ in range(3)),
        ),
    ]


def grade(code: ReaderCode, rng: random.Random) -> Iterator[Check]:
    """Yield the checks of every case; a case that does not run asks no further question."""
    for case in cases(rng):
        held: list[list[float]] = []

        def arguments(rank, fabric, case=case, held=held):
            held.append(list(case.data[rank]))
            return Comm(rank, fabric), held[rank]

        try:
            outcome = run(lambda rank: code.function("all_reduce"), case.world_size, arguments)
        except ReaderError as error:
            yield Check(name=f"{case.title}: runs", passed=False, message=str(error))
            continue
        yield _sums(case, outcome)
        if case.world_size > 1:
            yield _bytes(case, outcome)
            yield _ring(case, outcome)
            yield _messages(case, outcome)
        unchanged = [tuple(data) for data in held] == list(case.data)
        yield Check(
            name=f"{case.title}: data is left as it was",
            passed=unchanged,
            message="The caller still needs its gradients: copy first, as in total = list(data).",
        )


def _sums(case: Case, outcome: Outcome) -> Check:
    name = f"{case.title}: the sum on every rank"
    expected = [float(sum(column)) for column in zip(*case.data, strict=True)]
    for rank, got in enumerate(outcome.results):
        if isinstance(got, list | tuple) and len(got) == len(expected):
            wrong = [i for i in range(len(got)) if not close(expected[i], got[i], tolerance=TOLERANCE)]
            if not wrong:
                continue
            message = _wrong_sum(case, rank, got, wrong)
        elif got is None:
            message = "The program returned None: return the list of sums at its end."
        else:
            message = f"Return a list of {len(expected)} numbers, as long as data."
        return Check(
            name=name,
            passed=False,
            expected=shown(expected),
            got=f"rank {rank}: {shown(got)}",
            message=message,
        )
    return Check(name=name, passed=True)


def _wrong_sum(case: Case, rank: int, got: Sequence[float], wrong: list[int]) -> str:
    where = f"Rank {rank} is wrong at {len(wrong)} of {len(got)} positions, first at {wrong[0]}."
    mean = [sum(column) / case.world_size for column in zip(*case.data, strict=True)]
    if all(close(mean[i], got[i], tolerance=TOLERANCE) for i in range(len(got))):
        return "This is the mean. An all-reduce with the operation sum leaves the division to its caller."
    if all(got[i] == case.data[rank][i] for i in wrong):
        return (
            f"{where} There it still holds its own numbers: those chunks never came back. After the "
            "reduce-scatter each rank has one finished chunk; the all-gather must bring it the other N − 1."
        )
    own_twice = [got[i] - sum(data[i] for data in case.data) for i in wrong]
    if all(
        any(close(extra, data[i], tolerance=1e-9) for data in case.data)
        for extra, i in zip(own_twice, wrong, strict=True)
    ):
        return f"{where} One rank's number was added once too often: in the second phase replace, don't add."
    return (
        f"{where} Follow one chunk around the ring: in step k rank r sends chunk (r − k) mod N "
        "and receives chunk (r − k − 1) mod N."
    )


def _bytes(case: Case, outcome: Outcome) -> Check:
    num_ranks, size = case.world_size, case.length * VALUE_BYTES
    sent = outcome.sent_bytes()
    total = 2 * (num_ranks - 1) * size
    share_up = 2 * (num_ranks - 1) * -(-case.length // num_ranks) * VALUE_BYTES
    if case.length % num_ranks == 0:
        name = f"{case.title}: each rank sends exactly 2(N−1)/N × {size:,} bytes"
        passed, expected = all(count == total // num_ranks for count in sent), f"{total // num_ranks:,} each"
    else:
        name = f"{case.title}: all ranks together send exactly 2(N−1) × {size:,} bytes"
        passed = sum(sent) == total and max(sent) <= share_up
        expected = f"{total:,} together, at most {share_up:,} each"
    return Check(
        name=name,
        passed=passed,
        expected=expected,
        got=", ".join(f"{count:,}" for count in sent),
        message=_wrong_bytes(case, sent, total, share_up),
    )


def _wrong_bytes(case: Case, sent: list[int], total: int, share_up: int) -> str:
    num_ranks, size = case.world_size, case.length * VALUE_BYTES
    if all(count == (num_ranks - 1) * size for count in sent) and num_ranks > 2:
        return (
            f"Every rank sends the whole list {num_ranks - 1} times, (N−1) × size: that grows with N. Cut "
            "the list into N chunks and reduce each on its way round; then no rank sends twice its list, "
            "however many ranks there are."
        )
    if sum(sent) == num_ranks * share_up and case.length % num_ranks:
        return (
            "The list was padded to a multiple of N and the padding travels too. Let chunk lengths differ by "
            "one: bounds c·n // N and (c+1)·n // N."
        )
    if max(sent) > share_up and min(sent) < max(sent) // 2:
        return (
            f"Rank {sent.index(max(sent))} sends far more than the others: a root that collects and hands "
            "out everything is a bottleneck. In a ring every rank does the same."
        )
    if sum(sent) < total:
        return "Too few bytes for every rank to learn the sums: some chunks did not travel."
    return "Send one chunk a step, N − 1 steps in each of the two phases."


def _ring(case: Case, outcome: Outcome) -> Check:
    strangers = [
        (rank, message.to)
        for rank, messages in enumerate(outcome.sent)
        for message in messages
        if message.to != (rank + 1) % case.world_size
    ]
    got = f"rank {strangers[0][0]} sends to rank {strangers[0][1]}" if strangers else ""
    return Check(
        name=f"{case.title}: a rank sends only to its right-hand neighbour",
        passed=not strangers,
        expected="rank r sends to rank (r + 1) mod N",
        got=got,
        message="On a ring each link carries the same load. Messages to other ranks share links and collide.",
    )


def _messages(case: Case, outcome: Outcome) -> Check:
    allowed = 2 * (case.world_size - 1)
    most = max(map(len, outcome.sent))
    return Check(
        name=f"{case.title}: at most 2(N−1) messages a rank",
        passed=most <= allowed,
        expected=f"at most {allowed}",
        got=str(most),
        message="Every message costs a latency. Send a whole chunk in one message.",
    )
