"""Messages between neighbouring positions of a pipeline: activations onwards, gradients back.

A :class:`Link` carries one kind of message one way between two ranks. The first message of a link says the
shape and dtype of all that follow, which are raw tensors. Sends return at once; of a link at most
:data:`UNFINISHED` sends are under way, so that what was sent is soon freed.

**gloo** sends when the receiver has posted its buffer, so each link has :data:`AHEAD` receives posted ahead
of the program, and a message can arrive while its rank computes; tags keep the links of a pair apart.
**NCCL** has no tags and runs the messages of a pair one after the other on a stream, so there a receive is
posted where the lowered program has it: both ends of a pair then list their messages in one order, and that
order ends even if every send waits for its receive (:func:`pdtlib.plan.schedule.check_messages`).
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from pdtlib.engine.mesh import Group
from pdtlib.engine.pending import Pending

UNFINISHED = 2
AHEAD = 1
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
MAX_DIMS = 8


class Link:
    """Messages of one kind, F or B, into ``position`` of the model; ``peer`` is the rank at the other end."""

    def __init__(self, group: Group, peer: int, *, kind: str, position: int, device: torch.device) -> None:
        self.group, self.device = group, device
        self.peer = peer
        self.kind, self.position = kind, position
        self.phase = "forward" if kind == "F" else "backward"
        self.tag = 2 * position + (kind == "B")
        self.shape: torch.Size | None = None
        self.dtype = torch.float32

    def agree(self, like: torch.Tensor) -> None:
        """Fix what all messages of the link look like, if that is not known yet."""
        if self.shape is None:
            self.shape, self.dtype = like.shape, like.dtype


class Sender(Link):
    """The end that sends."""

    def __init__(self, group: Group, peer: int, **place: Any) -> None:
        super().__init__(group, peer, **place)
        self._pending: deque[Pending] = deque()

    def send(self, x: torch.Tensor) -> None:
        """Start to send ``x``, which nobody may write to any more.

        Raises ValueError where it does not look like the messages before it.
        """
        if self.shape is None:
            self.agree(x)
            if self.kind == "F":  # what comes back looks the same
                self._start(_header(x).to(self.device), "init")
        assert self.shape is not None
        if (x.shape, x.dtype) != (self.shape, self.dtype):
            raise ValueError(
                f"the output before position {self.position} is {tuple(x.shape)} {x.dtype}, in the first "
                f"micro-batch it was {tuple(self.shape)} {self.dtype}; all micro-batches must be alike"
            )
        self._start(x.contiguous(), self.phase)

    def _start(self, x: torch.Tensor, phase: str) -> None:
        while len(self._pending) >= UNFINISHED:
            self._pending.popleft().wait()
        self.group.ledger.record(
            axis=self.group.axis,
            collective="send",
            phase=phase,
            message_bytes=x.numel() * x.element_size(),
            group_size=self.group.size,
        )
        work = self.group.isend(x, self.peer, self.tag)
        self._pending.append(Pending(self.group, f"{phase} send", [work]).then(lambda: x))

    def finish(self) -> None:
        """Return when everything has been sent."""
        while self._pending:
            self._pending.popleft().wait()


class Receiver(Link):
    """The end that receives."""

    def __init__(self, group: Group, peer: int, **place: Any) -> None:
        super().__init__(group, peer, **place)
        self.ahead = AHEAD if group.backend == "gloo" else 0
        self.begin([])

    def begin(self, micro_batches: Sequence[int]) -> None:
        """A step begins, in which messages of these micro-batches come, in this order."""
        self._order, self._num_due = micro_batches, 0
        self._posted: dict[int, tuple[torch.Tensor, Pending]] = {}
        self._num_posted = 0
        self._post()

    def agree(self, like: torch.Tensor) -> None:
        super().agree(like)
        self._post()

    def due(self) -> None:
        """The program has come to the receive of the next message."""
        self._num_due += 1
        if self.shape is None:
            header = torch.empty(MAX_DIMS + 2, dtype=torch.int64, device=self.device)
            work = self.group.irecv(header, self.peer, self.tag)
            Pending(self.group, "header", [work]).wait()
            self.shape, self.dtype = _read(header)
        self._post()

    def _post(self) -> None:
        if self.shape is None:
            return
        for index in range(self._num_posted, min(self._num_due + self.ahead, len(self._order))):
            buffer = torch.empty(self.shape, dtype=self.dtype, device=self.device)
            work = self.group.irecv(buffer, self.peer, self.tag)
            pending = Pending(self.group, f"{self.phase} receive", [work])
            self._posted[self._order[index]] = buffer, pending
            self._num_posted += 1

    def take(self, micro_batch: int) -> torch.Tensor:
        """The message of a micro-batch; waits for it."""
        buffer, pending = self._posted.pop(micro_batch)
        pending.wait()
        return buffer


def _header(x: torch.Tensor) -> torch.Tensor:
    """dtype, number of dims and sizes of a message, as 10 integers."""
    if x.dtype not in DTYPES or x.dim() > MAX_DIMS:
        valid = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise ValueError(f"a part returned {x.dtype} with {x.dim()} dims; valid: up to {MAX_DIMS} of {valid}")
    sizes = [*x.shape, *[0] * (MAX_DIMS - x.dim())]
    return torch.tensor([DTYPES.index(x.dtype), x.dim(), *sizes], dtype=torch.int64)


def _read(header: torch.Tensor) -> tuple[torch.Size, torch.dtype]:
    kind, dims, *sizes = header.tolist()
    return torch.Size(sizes[:dims]), DTYPES[kind]
