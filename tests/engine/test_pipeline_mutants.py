"""Without any one of its messages, sums or halves, a pipeline no longer equals one process."""

import math
from contextlib import ExitStack
from typing import Any
from unittest import mock

import pytest
import torch
from pipeline_zoo import Case, reference, train

from pdtlib.engine import clip
from pdtlib.engine.data_parallel.cut import ModelCut
from pdtlib.engine.dist import spawn
from pdtlib.engine.mesh import Group
from pdtlib.engine.pending import Pending
from pdtlib.engine.pipeline import executor, pipeline
from pdtlib.engine.pipeline.links import Receiver

TIED = Case("1f1b", "gpt", 3, 2)
SPLIT = Case("zb-h1", "llama", 3, 2)
TWO_WAY = Case("dualpipe", "llama", 3, 2)


def nothing_came(kind: str) -> Any:
    """A receiver of this kind that hands out zeros; the message is received, so that nobody waits."""
    real = Receiver.take

    def take(self: Receiver, micro_batch: int) -> torch.Tensor:
        message = real(self, micro_batch)
        return message if self.kind != kind else torch.zeros_like(message)

    return take


def unsummed(buffer: torch.Tensor, group: Group, *, partner: int, phase: str) -> Pending:
    return Pending(group, "skipped", [])


def not_over_stages(buffer: torch.Tensor, group: Group, **options: Any) -> Pending:
    skipped = group.axis == "pp"
    return Pending(group, "skipped", []) if skipped else real_all_reduce(buffer, group, **options)


real_all_reduce = clip.start_all_reduce


def mutants() -> dict[str, tuple[Case, list[tuple[Any, str, Any]]]]:
    """Name -> the case that it harms, and what it replaces."""
    return {
        "none, tied": (TIED, []),
        "none, split": (SPLIT, []),
        "none, two-way": (TWO_WAY, []),
        "activations": (TIED, [(Receiver, "take", nothing_came("F"))]),
        "gradients": (TIED, [(Receiver, "take", nothing_came("B"))]),
        "sum of tied gradients": (TIED, [(pipeline, "start_sum", unsummed)]),
        "sum of copies' gradients": (TWO_WAY, [(pipeline, "start_sum", unsummed)]),
        "sum of the norm over stages": (TIED, [(clip, "start_all_reduce", not_over_stages)]),
        "tied copy counted once": (TIED, [(ModelCut, "counts", lambda self, param: True)]),
        "copies counted once": (TWO_WAY, [(ModelCut, "counts", lambda self, param: True)]),
        "weights' half": (SPLIT, [(executor, "finish", lambda works, give: works.clear())]),
    }


def train_mutants() -> dict[str, float]:
    found = {}
    for name, (case, patches) in mutants().items():
        with ExitStack() as stack:
            for owner, attribute, replacement in patches:
                stack.enter_context(mock.patch.object(owner, attribute, replacement))
            got = train(case, reference(case))
        found[name] = math.inf if math.isnan(got["worst"]) else got["worst"]
    return found


@pytest.fixture(scope="module")
def differences() -> list[dict[str, float]]:
    return spawn(train_mutants, 2, timeout_s=250)


@pytest.mark.parametrize("name", mutants())
def test_mutant_is_noticed(differences: list[dict[str, float]], name: str) -> None:
    worst = max(found[name] for found in differences)
    assert worst < 1e-9 if name.startswith("none") else worst > 1e-4, worst
