"""The executor: one rank's side of a step, action by action.

It obeys the program and decides nothing. What overlaps, waits or is kept is what the table says
(:mod:`pdtlib.plan.schedule`); a method per action says what an action is.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge

from pdtlib.engine.data_parallel.replica import Replica
from pdtlib.engine.mesh import Group
from pdtlib.engine.pipeline.links import Receiver, Sender
from pdtlib.engine.split_backward import Work, accumulate, deferring, finish
from pdtlib.plan.schedule import Act, Layout, Program, completing, deferred_in

Loss = Callable[[torch.Tensor, int], torch.Tensor]
Key = tuple[int, int]  # (micro-batch, chunk)


class Executor:
    """Runs programs of rank ``group.rank`` on its ``parts``, chunk 0 first.

    ``numbers`` are those by which the replica knows the parts. ``most_alive`` counts forward passes whose
    activations were there at one time, at the most. ``pace_s`` is how long a chunk's forward, and each half
    of its backward, takes at the least: an action that is done sooner sleeps.
    """

    def __init__(
        self,
        parts: Sequence[nn.Module],
        group: Group,
        layout: Layout,
        *,
        numbers: Sequence[int],
        device: torch.device,
    ) -> None:
        self.parts, self.group, self.layout, self.numbers = parts, group, layout, numbers
        self.replica: Replica | None = None
        self.most_alive = 0
        self.pace_s = 0.0
        self._receivers: dict[tuple[str, int], Receiver] = {}
        self._senders: dict[tuple[str, int], Sender] = {}
        for chunk in range(len(parts)):
            self._connect(chunk, device)

    def _connect(self, chunk: int, device: torch.device) -> None:
        rank, here = self.group.rank, self.layout.position(self.group.rank, chunk)
        before, after = self.layout.before(rank, chunk), self.layout.after(rank, chunk)
        if before is not None and before[0] != rank:
            self._receivers["F", chunk] = Receiver(
                self.group, before[0], kind="F", position=here, device=device
            )
            self._senders["B", chunk] = Sender(
                self.group, before[0], kind="B", position=here - 1, device=device
            )
        if after is not None and after[0] != rank:
            self._senders["F", chunk] = Sender(
                self.group, after[0], kind="F", position=here + 1, device=device
            )
            self._receivers["B", chunk] = Receiver(
                self.group, after[0], kind="B", position=here, device=device
            )

    def expect(self, like: torch.Tensor) -> None:
        """All messages to this rank look like this, also the first, which then need not say so."""
        for receiver in self._receivers.values():
            receiver.agree(like)

    def run(
        self,
        program: Program,
        micro_batches: Sequence[Any],
        loss: Loss,
        begin: Callable[[int], None] | None = None,
    ) -> torch.Tensor:
        """One step's forward and backward passes; returns the sum of what ``loss`` returned here."""
        self._micro_batches, self._loss, self._begin = micro_batches, loss, begin
        self._total: torch.Tensor | None = None
        self._alive: dict[Key, tuple[torch.Tensor, Any]] = {}  # from a forward to the end of its backward
        self._works: dict[Key, list[Work]] = {}
        self._results: dict[Act, torch.Tensor] = {}  # on their way to another position
        self._deferred = deferred_in(program)
        self._last = {act.chunk: act for act in completing(program)}
        for (kind, chunk), receiver in self._receivers.items():
            receives = [act for act in program if act.op == f"R{kind}" and act.chunk == chunk]
            receiver.begin([act.micro_batch for act in receives])
        for act in program:
            try:
                getattr(self, f"_{act.op}")(act)
            except Exception as error:
                error.add_note(f"in action {act} of pipeline rank {self.group.rank}")
                raise
        for sender in self._senders.values():
            sender.finish()
        return torch.zeros(()) if self._total is None else self._total

    # --- actions ------------------------------------------------------------------------------------------

    def _F(self, act: Act) -> None:
        _, micro_batch, chunk = act
        x = self._input(act)
        if self._begin is not None:
            self._begin(micro_batch)
        with self._span(act), self._pass("forward_of", chunk):
            y = self.parts[chunk](x)
            if self.layout.after(self.group.rank, chunk) is None:
                y = self._loss(y, micro_batch)
                total = y.detach()
                self._total = total if self._total is None else self._total + total
                self._alive[micro_batch, chunk] = x, y if y.requires_grad else None
            else:
                # The edge into the graph is enough: the output itself is freed when it has been sent.
                edge = get_gradient_edge(y) if y.requires_grad else None
                self._alive[micro_batch, chunk] = x, edge
                self._results[act] = y.detach()
        self.most_alive = max(self.most_alive, len(self._alive) + len(self._works))

    def _B(self, act: Act) -> None:
        _, micro_batch, chunk = act
        grad = self._output_gradient(act)
        x, y = self._alive.pop((micro_batch, chunk))
        split = (micro_batch, chunk) in self._deferred
        works: list[Work] = []
        with self._span(act), self._pass("backward_of", chunk, weights=not split, last=self._is_last(act)):
            if y is not None:
                with deferring(works) if split else nullcontext():
                    torch.autograd.backward([y], [grad])
        if split:
            self._works[micro_batch, chunk] = works
        if self.layout.before(self.group.rank, chunk) is not None:
            self._results[act] = torch.zeros_like(x) if x.grad is None else x.grad
            x.grad = None

    def _W(self, act: Act) -> None:
        works = self._works.pop((act.micro_batch, act.chunk))
        with self._span(act), self._pass("backward_of", act.chunk, inputs=False, last=self._is_last(act)):
            finish(works, accumulate if self.replica is None else self.replica.give_gradient)

    def _SF(self, act: Act) -> None:
        output = self._results.pop(Act("F", act.micro_batch, act.chunk))
        self._senders["F", act.chunk].send(output)
        self._receivers["B", act.chunk].agree(output)

    def _SB(self, act: Act) -> None:
        self._senders["B", act.chunk].send(self._results.pop(Act("B", act.micro_batch, act.chunk)))

    def _RF(self, act: Act) -> None:
        self._receivers["F", act.chunk].due()

    def _RB(self, act: Act) -> None:
        self._receivers["B", act.chunk].due()

    # --- what actions need --------------------------------------------------------------------------------

    def _input(self, act: Act) -> Any:
        """What a forward works on: a micro-batch, a message, or another chunk's output."""
        before = self.layout.before(self.group.rank, act.chunk)
        if before is None:
            x = self._micro_batches[act.micro_batch]
            return x if self.replica is None else self.replica.cast(x)
        if before[0] == self.group.rank:
            return self._results.pop(Act("F", act.micro_batch, before[1])).requires_grad_()
        return self._receivers["F", act.chunk].take(act.micro_batch).requires_grad_()

    def _output_gradient(self, act: Act) -> torch.Tensor | None:
        """The gradient of a forward's output; None for the loss."""
        after = self.layout.after(self.group.rank, act.chunk)
        if after is None:
            return None
        if after[0] == self.group.rank:
            return self._results.pop(Act("B", act.micro_batch, after[1]))
        return self._receivers["B", act.chunk].take(act.micro_batch)

    def _is_last(self, act: Act) -> bool:
        return self._last[act.chunk] is act

    def _pass(self, kind: str, chunk: int, **options: bool) -> AbstractContextManager[None]:
        if self.replica is None:
            return nullcontext()
        return getattr(self.replica, kind)(self.numbers[chunk], **options)

    @contextmanager
    def _span(self, act: Act) -> Iterator[None]:
        timeline = self.group.timeline
        with nullcontext() if timeline is None else timeline.span("compute", str(act)):
            began = time.monotonic()
            yield
            if self.pace_s:
                halves = 2 if act.op == "B" and (act.micro_batch, act.chunk) not in self._deferred else 1
                time.sleep(max(0.0, began + halves * self.pace_s - time.monotonic()))
