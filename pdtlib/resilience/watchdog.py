"""A watchdog for ranks that hang: it names the collective, and the ranks that did not arrive.

A rank that waits for a message cannot tell a slow peer from a dead one, and torch's own timeout only says
that it waited. So every rank publishes once a second how many collectives it has begun on each axis. One that
has waited too long looks up the others of that group: those that have begun fewer did not arrive. It says
so, ends those of them that hang on its own node, and aborts; torchrun's agent then starts the ranks
anew, as for any failure.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch.distributed as dist

from pdtlib.engine.dist import common_store
from pdtlib.engine.mesh import Group, Mesh
from pdtlib.engine.training.companion import Companion

BEAT_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Beat:
    """What a rank publishes. ``calls`` are collectives begun, by group; ``where`` is its line of code."""

    rank: int
    step: int
    time: float
    node: str
    pid: int
    where: str
    calls: dict[str, int] = field(default_factory=dict)


PATIENCE_S = 5.0
"""How long the common store may take to answer."""

STEP_LIMITS = 5
"""A step that takes so many limits hangs too, at a place that is no collective of the mesh."""


def verdict(mine: Beat, others: list[Beat], *, group: str, call: str, waited_s: float, now: float) -> str:
    """One line about a collective that does not come to an end.

    >>> me = Beat(rank=0, step=5, time=100.0, node="a", pid=1, where="", calls={"dp": 12})
    >>> late = Beat(rank=1, step=4, time=91.0, node="b", pid=2, where="data.py:170", calls={"dp": 11})
    >>> verdict(me, [late], group="dp", call="grads all_reduce", waited_s=10, now=100.0)
    'grads all_reduce over dp has waited 10 s in step 5 (call 12); did not arrive: rank 1 \
(node b, silent for 9 s, last in step 4 at data.py:170)'
    """
    late = [other for other in others if other.calls.get(group, 0) < mine.calls[group]]
    told = ", ".join(_described(other, now) for other in late) or "nobody: a message itself was lost"
    text = f"{call} over {group} has waited {waited_s:.0f} s in step {mine.step} (call {mine.calls[group]})"
    return f"{text}; did not arrive: {told}"


def _described(beat: Beat, now: float) -> str:
    silent_s = now - beat.time
    state = f"silent for {silent_s:.0f} s, last in" if silent_s > 3 * BEAT_S else "alive in"
    return f"rank {beat.rank} (node {beat.node}, {state} step {beat.step} at {beat.where})"


class Watchdog(Companion):
    """Ends this rank when it waits longer than ``limit_s`` for the others of a group.

    A step must be shorter than five times that.
    Works through the ranks' common store, so a run that no agent has started has no watchdog.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s, self.step = limit_s, 0
        self._main = threading.main_thread().ident
        self._over = threading.Event()
        self._stepped = float("inf")

    def join(self, mesh: Mesh, *, on_disk: int) -> int:
        self._store = common_store()
        if self._store is None:
            return on_disk
        # What an earlier start of the ranks has published under their numbers must not be taken for news.
        token: list[Any] = [uuid.uuid4().hex]
        dist.broadcast_object_list(token)
        self._key = f"pdt/watch/{token[0]}"
        self._groups = mesh.groups()
        self._publish()
        for work in (self._beat, self._watch):
            threading.Thread(target=work, name="watchdog", daemon=True).start()
        return on_disk

    def before_step(self, step: int) -> None:
        self.step, self._stepped = step, time.monotonic()

    def end(self) -> None:
        self._over.set()

    def _beat(self) -> None:
        """Publish for as long as the store answers; it may stand still with the rank that keeps it."""
        with suppress(dist.DistError, RuntimeError):
            while not self._over.wait(min(BEAT_S, self.limit_s / 4)):
                self._publish()

    def _watch(self) -> None:
        while not self._over.wait(min(BEAT_S, self.limit_s / 4)):
            for group in self._groups:
                waits = group.waits
                if waits is not None and time.monotonic() - waits[1] > self.limit_s:
                    self._end(group, *waits)
            if time.monotonic() - self._stepped > STEP_LIMITS * self.limit_s:
                waited_s = time.monotonic() - self._stepped
                where = f"this rank is at {self._where()}"
                _say(dist.get_rank(), f"step {self.step} has not ended for {waited_s:.0f} s; {where}")
                os.kill(os.getpid(), signal.SIGABRT)

    def _end(self, group: Group, call: str, since: float) -> None:
        """Look up who did not arrive, in a thread of its own, since the store may not answer; then abort."""
        asking = threading.Thread(target=self._bark, args=(group, call, since), daemon=True)
        asking.start()
        asking.join(PATIENCE_S)
        if group.waits is not None and group.waits[1] == since:
            waited_s = time.monotonic() - since
            text = f"{call} over {_name(group)} has waited {waited_s:.0f} s in step {self.step}"
            _say(dist.get_rank(), f"{text}; the ranks' common store does not answer either")
            os.kill(os.getpid(), signal.SIGABRT)

    def _publish(self) -> Beat:
        assert self._store is not None
        beat = Beat(
            rank=dist.get_rank(),
            step=self.step,
            time=time.time(),
            node=_node(),
            pid=os.getpid(),
            where=self._where(),
            calls={_name(group): group.calls for group in self._groups},
        )
        self._store.set(f"{self._key}/{beat.rank}", json.dumps(asdict(beat)))
        return beat

    def _where(self) -> str:
        """The innermost line of this package at which the main thread is."""
        frame = sys._current_frames().get(self._main or 0)
        while frame is not None:
            if "pdtlib" in frame.f_code.co_filename:
                return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            frame = frame.f_back
        return "its start"

    def _bark(self, group: Group, call: str, since: float) -> None:
        assert self._store is not None
        mine, others = self._publish(), []
        for rank in group.ranks:
            key = f"{self._key}/{rank}"
            if rank != mine.rank and self._store.check([key]):
                others.append(Beat(**json.loads(self._store.get(key))))
        if group.waits is None:
            return
        name, waited_s = _name(group), time.monotonic() - since
        late = [other for other in others if other.calls.get(name, 0) < mine.calls[name]]
        text = verdict(mine, others, group=name, call=call, waited_s=waited_s, now=time.time())
        arrived = [other.rank for other in others if other not in late]
        if mine.rank < min(arrived, default=mine.rank + 1):
            _say(mine.rank, text)
        for other in late:
            if other.node == mine.node and time.time() - other.time > 3 * BEAT_S:
                with suppress(OSError):
                    os.kill(other.pid, signal.SIGKILL)  # SIGTERM would not wake one that is stopped
        os.kill(os.getpid(), signal.SIGABRT)


def _say(rank: int, text: str) -> None:
    sys.stderr.write(f"rank {rank}: {text}\n")
    sys.stderr.flush()


def _name(group: Group) -> str:
    """The group in words; several groups of a rank may lie along one axis.

    >>> _name(Group("dp", None, (0, 2), 0)), _name(Group("tp", None, tuple(range(8)), 0))
    ('dp (ranks 0, 2)', 'tp (8 ranks, 0 to 7)')
    """
    if group.size > 4:
        return f"{group.axis} ({group.size} ranks, {group.ranks[0]} to {group.ranks[-1]})"
    return f"{group.axis} (ranks {', '.join(map(str, group.ranks))})"


def _node() -> str:
    """The machine, and the process namespace in which a number means a process."""
    try:
        space = os.readlink("/proc/self/ns/pid").rpartition("[")[2].rstrip("]")
    except OSError:
        space = "0"
    return f"{socket.gethostname()}/{space}"
