"""The job that every contender does, and the form in which each of them does it.

One optimizer step of a small Llama: the same weights, the same sequences, AdamW, clipping at 1. A contender
is a function from a :class:`Task` to a :class:`Contender`; this module knows none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from pdtlib.engine.data import Batches, Corpus
from pdtlib.engine.models import Transformer
from pdtlib.plan.spec import Model

MODELS = {
    "tiny": Model(
        name="tiny", layers=8, hidden=32, heads=4, ffn=64, vocab=512, seq=32,
        activation="swiglu", norm="rmsnorm", positions="rotary",
    ),
    "12M": Model(
        name="12M", layers=8, hidden=256, heads=8, ffn=1024, vocab=8192, seq=256,
        activation="swiglu", norm="rmsnorm", positions="rotary",
    ),
    "50M": Model(
        name="50M", layers=8, hidden=512, heads=8, ffn=2048, vocab=16384, seq=256,
        activation="swiglu", norm="rmsnorm", positions="rotary",
    ),
}  # fmt: skip
SEED = 20
LEARNING_RATE = 1e-3
MAX_NORM = 1.0
GLOBAL_BATCH = 8  # sequences of 256 tokens: 2,048 tokens a step
ADAMW = {"lr": LEARNING_RATE, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is asked of one rank. ``options`` are the contender's own, such as its ZeRO stage."""

    model: Model
    precision: str  # fp32, or bf16 parameters with fp32 master weights
    rank: int
    world: int
    device: torch.device
    options: dict[str, Any] = field(default_factory=dict)

    def build(self, **part: Any) -> Transformer:
        """The model, the same for every contender."""
        return Transformer(self.model, seed=SEED, device=self.device, **part)

    def batches(
        self, *, rank: int, ranks: int, micro_batches: int = 1
    ) -> Iterator[list[tuple[Tensor, Tensor]]]:
        """For every step the micro-batches (tokens, targets) of one of ``ranks`` data-parallel ranks."""
        corpus = Corpus(vocab=self.model.vocab)
        batches = Batches(corpus, seq=self.model.seq, global_batch=GLOBAL_BATCH, seed=SEED)
        count = GLOBAL_BATCH // ranks // micro_batches
        step = 0
        while True:
            taken = []
            for index in range(micro_batches):
                first = (rank * micro_batches + index) * count
                tokens, targets = batches.take(step, first=first, count=count)
                taken.append((tokens.to(self.device), targets.to(self.device)))
            yield taken
            step += 1


@dataclass(kw_only=True)
class Contender:
    """One rank of a contender, ready to train.

    ``step()`` does a whole optimizer step and returns this rank's loss. The global loss of a step is the mean
    of the ranks' losses that are not None. ``states()`` gives the tensors that hold parameters, gradients and
    optimizer states; ``close()`` ends what it has started.
    """

    step: Callable[[], float | None]
    states: Callable[[], list[Tensor]]
    close: Callable[[], None] = lambda: None


def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean over all tokens; every sequence has the same number, so means of means are right here."""
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def states_of(module: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Parameters, gradients and optimizer states as torch holds them; of a DTensor, this rank's part."""
    found: list[Tensor] = []
    for param in module.parameters():
        found += [param.data] if param.grad is None else [param.data, param.grad]
    for state in optimizer.state.values():
        found += [value for value in state.values() if isinstance(value, Tensor) and value.dim() > 0]
    return [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in found]


def num_bytes(tensors: list[Tensor]) -> int:
    """Bytes of the memory behind ``tensors``, each storage once."""
    storages = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())
