"""Ranks in one interpreter: each rank's program is a generator that yields when it must wait.

A send is buffered and counted at once. ``values = yield comm.recv(source=r)`` waits for the next message
from rank r. Ranks run in turn, in rank order, each until it waits, so a run is deterministic. When every
unfinished rank waits, that is a deadlock, and the report names who waits for whom and on which line.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pdtlib.exercises.source import ReaderError, told

VALUE_BYTES = 8  # a float64
MAX_MESSAGES = 20_000


@dataclass(frozen=True)
class Message:
    """What a rank sent: the receiver and the number of values."""

    to: int
    num_values: int

    @property
    def num_bytes(self) -> int:
        return self.num_values * VALUE_BYTES


class _Waiting:
    """What ``comm.recv`` and ``comm.all_reduce`` return: an order for the simulator, to be yielded."""

    def __init__(self, told_as: str) -> None:
        self._told_as = told_as

    def _misused(self, *_: object) -> Any:
        # No TypeError: list operations would replace its text by their own.
        raise RuntimeError(f"write `yield {self._told_as}`: without yield the rank does not wait")

    __iter__ = __len__ = __getitem__ = __add__ = __radd__ = __mul__ = __rmul__ = _misused
    __sub__ = __rsub__ = __truediv__ = __rtruediv__ = __float__ = __int__ = __bool__ = _misused


class _Receive(_Waiting):
    def __init__(self, source: int) -> None:
        super().__init__(f"comm.recv(source={source})")
        self.source = source


class AllReduce(_Waiting):
    """An order for the sum over all ranks of a count, or of lists of numbers, element by element."""

    def __init__(self, value: int | list[float], told_as: str = "comm.all_reduce(count)") -> None:
        super().__init__(told_as)
        self.value = value


@dataclass
class Fabric:
    """The network: what is under way, what was sent, and the first thing that went wrong.

    A fault is kept here as well as raised, so that a program that catches everything does not hide it.
    """

    world_size: int
    sent: list[list[Message]] = field(init=False)
    in_flight: dict[tuple[int, int], deque[list[float]]] = field(init=False)
    all_reduces: int = 0
    fault: str = ""

    def __post_init__(self) -> None:
        self.sent = [[] for _ in range(self.world_size)]
        ranks = range(self.world_size)
        self.in_flight = {(source, to): deque() for source in ranks for to in ranks}

    def refuse(self, error: Exception) -> Exception:
        """Note the first fault and hand the error back to be raised."""
        self.fault = self.fault or f"{type(error).__name__}: {error}"
        return error


class Comm:
    """A rank's view of the network: ``rank``, ``world_size``, ``send`` and ``recv``."""

    def __init__(self, rank: int, fabric: Fabric) -> None:
        self.rank = rank
        self.world_size = fabric.world_size
        self._fabric = fabric

    def send(self, values: Sequence[float], *, to: int) -> None:
        """Send a list of numbers to rank ``to``. Returns at once: the values are copied.

        Raises:
            ValueError: no such rank, or the rank itself.
            TypeError: ``values`` is not a list of numbers.
        """
        fabric = self._fabric
        self._check_peer("to", to)
        if isinstance(values, _Waiting):
            values._misused()
        if not isinstance(values, list | tuple):
            raise fabric.refuse(TypeError(f"send takes a list of numbers, got a {type(values).__name__}"))
        for value in values:
            if type(value) not in (int, float):
                raise fabric.refuse(
                    TypeError(f"send takes a list of numbers; one of them is a {type(value).__name__}")
                )
        if sum(map(len, fabric.sent)) >= MAX_MESSAGES:
            raise fabric.refuse(
                RuntimeError(f"more than {MAX_MESSAGES:,} messages were sent: a loop does not end")
            )
        fabric.sent[self.rank].append(Message(to, len(values)))
        fabric.in_flight[self.rank, to].append([float(value) for value in values])

    def recv(self, *, source: int) -> _Receive:
        """``values = yield comm.recv(source=r)`` waits for the next message that rank r sent to this one."""
        self._check_peer("source", source)
        return _Receive(source)

    def _check_peer(self, argument: str, peer: object) -> None:
        if type(peer) is not int or not 0 <= peer < self.world_size:
            valid = f"a rank from 0 to {self.world_size - 1}"
            raise self._fabric.refuse(ValueError(f"{argument}={peer!r} on rank {self.rank}: must be {valid}"))
        if peer == self.rank:
            raise self._fabric.refuse(ValueError(f"{argument}={peer}: rank {self.rank} talks to itself"))


class CountComm:
    """A view of the network that only sums counts: ``rank``, ``world_size``, ``all_reduce``."""

    def __init__(self, rank: int, fabric: Fabric) -> None:
        self.rank = rank
        self.world_size = fabric.world_size
        self._fabric = fabric

    def all_reduce(self, count: int) -> AllReduce:
        """``total = yield comm.all_reduce(count)`` waits for the sum of every rank's ``count``, an int."""
        if type(count) is not int:
            raise self._fabric.refuse(
                TypeError(
                    f"comm.all_reduce sums counts, so it takes an int, not {count!r}. Gradients and losses "
                    "are left to data parallelism, which averages what you return"
                )
            )
        return AllReduce(count)


@dataclass(frozen=True)
class Outcome:
    """What every rank returned, and what it sent."""

    results: list[Any]
    sent: list[list[Message]]
    all_reduces: int

    def sent_bytes(self) -> list[int]:
        """Bytes sent by each rank."""
        return [sum(message.num_bytes for message in messages) for messages in self.sent]


def run(
    program_of: Callable[[int], Callable[..., Any]],
    world_size: int,
    args_of: Callable[[int, Fabric], tuple[Any, ...]],
) -> Outcome:
    """Run ``program_of(rank)(*args_of(rank, fabric))`` on every rank until all have returned.

    Raises:
        ReaderError: a rank raised, yielded something else, or all wait for one another.
    """
    fabric = Fabric(world_size)
    try:
        results = _run_all(program_of, args_of, fabric)
    except ReaderError as error:
        if fabric.fault and fabric.fault not in str(error):
            raise ReaderError(fabric.fault) from None
        raise
    if fabric.fault:
        raise ReaderError(fabric.fault)
    for (source, to), messages in fabric.in_flight.items():
        if messages:
            raise ReaderError(
                f"Rank {source} sent {len(messages)} message(s) to rank {to} that rank {to} never received."
            )
    return Outcome(results, fabric.sent, fabric.all_reduces)


def _run_all(
    program_of: Callable[[int], Callable[..., Any]],
    args_of: Callable[[int, Fabric], tuple[Any, ...]],
    fabric: Fabric,
) -> list[Any]:
    ranks: list[_Rank] = []
    try:
        for rank in range(fabric.world_size):
            program = program_of(rank)
            with _of_rank(rank):
                ranks.append(_Rank(rank, program(*args_of(rank, fabric)), fabric))
        while not all(rank.done for rank in ranks):
            moved = [rank.advance() for rank in ranks]
            if fabric.fault:
                raise ReaderError(fabric.fault)
            if not any(moved) and not _finish_all_reduce(ranks, fabric):
                raise ReaderError(_deadlock(ranks))
        return [rank.result for rank in ranks]
    finally:
        for started in ranks:
            started.stop()


class _Rank:
    def __init__(self, rank: int, started: Any, fabric: Fabric) -> None:
        self.rank = rank
        self.fabric = fabric
        self.result: Any = None
        self.waits: _Waiting | None = None
        self.done = not isinstance(started, Generator)
        # Any: mypy knows generators without the attributes that say where they wait.
        self.generator: Any = started
        if self.done:
            self.result = started

    def advance(self) -> bool:
        """Run until the rank waits for something that is not there. True if it moved at all."""
        moved = False
        while not self.done:
            value = None
            if isinstance(self.waits, _Receive):
                messages = self.fabric.in_flight[self.waits.source, self.rank]
                if not messages:
                    return moved
                value = messages.popleft()
            elif self.waits is not None:
                return moved
            self.resume(value)
            moved = True
        return moved

    def resume(self, value: Any) -> None:
        with _of_rank(self.rank):
            try:
                self.waits = _order(self.generator.send(value))
            except StopIteration as stop:
                self.done, self.waits, self.result = True, None, stop.value

    def line(self) -> int:
        """The reader's line on which the rank waits, through ``yield from``."""
        generator = self.generator
        while isinstance(generator.gi_yieldfrom, Generator):
            generator = generator.gi_yieldfrom
        return generator.gi_frame.f_lineno

    def stop(self) -> None:
        if not self.done:
            try:
                self.generator.close()
            except BaseException:
                # The verdict is already out; a program that refuses to stop cannot change it.
                self.done = True


def _order(yielded: object) -> _Waiting:
    if not isinstance(yielded, _Waiting):
        raise ReaderError(f"yielded {yielded!r}: yield only what comm returns, as in `yield comm.recv(...)`")
    return yielded


@contextmanager
def _of_rank(rank: int) -> Iterator[None]:
    """Name the rank in whatever the reader's code raises inside."""
    try:
        with told():
            yield
    except ReaderError as error:
        raise ReaderError(f"On rank {rank}: {error}") from None


def _finish_all_reduce(ranks: list[_Rank], fabric: Fabric) -> bool:
    """Give every rank the sum when all wait in an all-reduce."""
    values = [rank.waits.value for rank in ranks if isinstance(rank.waits, AllReduce)]
    if len(values) < len(ranks):
        return False
    fabric.all_reduces += 1
    for rank in ranks:
        rank.resume(_sum(values))
    return True


def _sum(values: list[Any]) -> Any:
    if all(type(value) is int for value in values):
        return sum(values)
    lengths = [len(value) for value in values]
    if len(set(lengths)) > 1:
        raise ReaderError(f"The ranks all-reduce lists of different lengths: {lengths}, in rank order.")
    return [sum(parts) for parts in zip(*values, strict=True)]


def _deadlock(ranks: list[_Rank]) -> str:
    lines = ["Deadlock: every rank that is still running waits."]
    returned = {rank.rank for rank in ranks if rank.done}
    for rank in ranks:
        if rank.done:
            continue
        where = f"Rank {rank.rank}, line {rank.line()}: waits"
        if isinstance(rank.waits, _Receive):
            source = rank.waits.source
            gone = ", which has already returned" if source in returned else ""
            lines.append(f"{where} for a message from rank {source}{gone}")
        else:
            absent = f"; already returned without it: {sorted(returned)}" if returned else ""
            lines.append(f"{where} in an all-reduce, which needs every rank{absent}")
    lines.append(
        "A message must be sent before its receiver can go on: check who sends what to whom, and when."
    )
    return "\n".join(lines)
