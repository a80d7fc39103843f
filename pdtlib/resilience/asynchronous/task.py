"""What a worker computes, whatever the way in which its results reach the others: a gradient of the job's
model on rows of the job's corpus."""

from __future__ import annotations

import torch
from torch import Tensor

from pdtlib.engine.data import Batches, Corpus
from pdtlib.engine.loss import IGNORED, token_loss_sum
from pdtlib.engine.models import Transformer
from pdtlib.plan.job import Job

HELD_OUT = 10_000_000
"""Steps from here on are for measuring only; no training gets so far."""


class Task:
    """The job's model with all weights in one flat vector [P], and batches that depend on the step alone."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.model = Transformer(job.model, seed=job.train.seed)
        self.params = list(self.model.parameters())
        corpus = Corpus((), vocab=job.model.vocab)
        train = job.train
        self.batches = Batches(corpus, seq=job.model.seq, global_batch=train.global_batch, seed=train.seed)

    def weights(self) -> Tensor:
        """A copy of all weights, [P]."""
        return torch.nn.utils.parameters_to_vector(self.params).detach().clone()

    def set_weights(self, flat: Tensor) -> None:
        """Use these weights, [P]."""
        torch.nn.utils.vector_to_parameters(flat, self.params)

    def gradient(self, step: int, *, first: int, count: int) -> tuple[Tensor, float]:
        """Gradient [P] and mean loss of ``count`` rows of the step's global batch, from row ``first``."""
        tokens, targets = self.batches.take(step, first=first, count=count)
        self.model.zero_grad()
        loss = token_loss_sum(self.model(tokens), targets) / int((targets != IGNORED).sum())
        loss.backward()
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.params]
        return torch.nn.utils.parameters_to_vector(grads).detach().clone(), loss.item()

    @torch.no_grad()
    def held_out_loss(self, steps: int = 2) -> float:
        """Mean loss on batches that no training has seen."""
        total, counted = 0.0, 0
        for step in range(HELD_OUT, HELD_OUT + steps):
            tokens, targets = self.batches.take(step, first=0, count=self.job.train.global_batch)
            total += token_loss_sum(self.model(tokens), targets).item()
            counted += int((targets != IGNORED).sum())
        return total / counted


class FlatAdamW:
    """AdamW on one flat vector, with the job's learning rate and decay, and its limit on the norm."""

    def __init__(self, weights: Tensor, job: Job) -> None:
        self.weights = torch.nn.Parameter(weights)
        train = job.train
        self._clip = train.clip_grad_norm
        self._optimizer = torch.optim.AdamW(
            [self.weights], lr=train.learning_rate, weight_decay=train.weight_decay
        )

    def step(self, gradient: Tensor) -> None:
        """Update ``weights`` by a gradient [P]."""
        self.weights.grad = gradient
        if self._clip:
            torch.nn.utils.clip_grad_norm_([self.weights], self._clip)
        self._optimizer.step()
