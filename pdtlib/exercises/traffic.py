"""What a rank sends in a torch exercise: every call into torch.distributed is counted, logged, or refused.

The functions of torch.distributed are replaced for the time of a grading. Code that goes round them is not
counted, and then fails the checks that demand a number of bytes.
"""

import functools
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from pdtlib.exercises.source import FILENAME
from pdtlib.plan.comm import sent_bytes

# Function of torch.distributed: the ring collective it counts as, and which argument is the whole message.
_COUNTED = {
    "all_reduce": ("all_reduce", 0),
    "broadcast": ("broadcast", 0),
    "all_gather": ("all_gather", 0),
    "all_gather_into_tensor": ("all_gather", 0),
    "all_gather_single": ("all_gather", 0),
    "reduce_scatter": ("reduce_scatter", 1),
    "reduce_scatter_tensor": ("reduce_scatter", 1),
    "reduce_scatter_single": ("reduce_scatter", 1),
    "send": ("send", 0),
    "isend": ("send", 0),
    "recv": ("recv", 0),
    "irecv": ("recv", 0),
}
_REFUSED = ("reduce", "gather", "scatter", "all_to_all", "all_to_all_single", "all_reduce_coalesced")
POINT_TO_POINT = ("send", "recv")


@dataclass
class Call:
    """One communication of this rank. ``peer`` is set for a send or receive.

    ``waited`` becomes True when the reader's code waits for the result of an asynchronous call.
    """

    kind: str
    message_bytes: int
    sent_bytes: float
    asynchronous: bool
    peer: int | None = None
    waited: bool = False


@dataclass
class Traffic:
    """The calls of one rank since the last :meth:`reset`, and the first fault since the start.

    A fault stays here when the reader's code catches the error. The log file says, after a crash or a hang,
    where the rank was.
    """

    allowed: tuple[str, ...]
    log: Path
    calls: list[Call] = field(default_factory=list)
    fault: str = ""
    _depth: int = 0

    def reset(self) -> None:
        self.calls = []

    @property
    def sent_bytes(self) -> float:
        return sum(call.sent_bytes for call in self.calls)

    def write(self, **entry: Any) -> None:
        """Append one line to the log."""
        with self.log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def note_fault(self, text: str) -> None:
        self.fault = self.fault or text


@contextmanager
def counted(traffic: Traffic) -> Iterator[Traffic]:
    """Put counting functions in torch.distributed while inside."""
    replaced = []
    for name in (*_COUNTED, *_REFUSED):
        original = getattr(c10d, name, None)
        if original is not None:
            wrapper = _wrapper(name, original, traffic)
            for module in (c10d, dist):
                replaced.append((module, name, getattr(module, name)))
                setattr(module, name, wrapper)
    try:
        yield traffic
    finally:
        for module, name, original in replaced:
            setattr(module, name, original)


def _wrapper(name: str, original: Callable[..., Any], traffic: Traffic) -> Callable[..., Any]:
    kind, message_index = _COUNTED.get(name, (name, 0))
    signature = inspect.signature(original)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if traffic._depth:  # one function of torch.distributed built on another
            return original(*args, **kwargs)
        if kind not in traffic.allowed:
            text = f"dist.{name} is not allowed in this exercise; allowed: {', '.join(traffic.allowed)}"
            traffic.note_fault(text)
            raise RuntimeError(text)
        values = signature.bind(*args, **kwargs).arguments
        message = list(values.values())[message_index]
        tensors = message if isinstance(message, list | tuple) else [message]
        if not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
            return original(*args, **kwargs)  # torch says what is wrong with it
        made = _call(kind, tensors, values, name)
        traffic.calls.append(made)
        line = _reader_line()
        traffic.write(op=name, bytes=made.message_bytes, peer=made.peer, line=line)
        traffic._depth += 1
        try:
            result = original(*args, **kwargs)
        except Exception as error:
            traffic.note_fault(f"dist.{name} failed: {error}")
            raise
        finally:
            traffic._depth -= 1
        if made.asynchronous and result is not None:
            return _Watched(result, made)
        traffic.write(done=name)
        return result

    return call


class _Watched:
    """A Work object that notes that it was waited for."""

    def __init__(self, work: Any, made: Call) -> None:
        self._work = work
        self._made = made

    def __getattr__(self, name: str) -> Any:
        if name in ("wait", "synchronize", "get_future", "is_completed"):
            self._made.waited = True
        return getattr(self._work, name)


def _call(kind: str, tensors: Sequence[torch.Tensor], values: dict[str, Any], name: str) -> Call:
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    peer = next(
        (values[key] for key in ("dst", "src", "group_dst", "group_src") if values.get(key) is not None), None
    )
    world_size = dist.get_world_size(values.get("group"))
    sent = 0.0 if kind == "recv" else sent_bytes(kind, size, world_size)
    asynchronous = bool(values.get("async_op")) or name in ("isend", "irecv")
    return Call(kind, size, sent, asynchronous, peer if kind in POINT_TO_POINT else None)


def _reader_line() -> int:
    """The line of the reader's code that made this call; 0 when none did."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename == FILENAME:
            return frame.f_lineno
        frame = frame.f_back
    return 0
