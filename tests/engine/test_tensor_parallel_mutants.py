"""Without any one of its sums, gathers or counts, tensor parallelism no longer equals one process."""

import math
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from test_tensor_parallel import difference, train
from torch import nn

from pdtlib.engine import clip
from pdtlib.engine.data_parallel import cut, data_parallel
from pdtlib.engine.data_parallel.cut import ModelCut
from pdtlib.engine.dist import spawn
from pdtlib.engine.mesh import Group, build_mesh
from pdtlib.engine.optimizer import ShardedAdamW
from pdtlib.engine.pending import Pending
from pdtlib.engine.tensor_parallel import loss, regions

SUM, SEQUENCE = False, True
ONE_KEY = "a key/value head on several ranks"


def skip_sum(real: Callable[..., Pending], wanted: Callable[..., bool]) -> Callable[..., Pending]:
    """An all-reduce that is not done where ``wanted`` says so."""

    def start(buffer: torch.Tensor, group: Group, *, phase: str, maximum: bool = False) -> Pending:
        if wanted(group=group, phase=phase, maximum=maximum):
            return Pending(group, "skipped", [])
        return real(buffer, group, phase=phase, maximum=maximum)

    return start


def skip_shares(real: Callable[..., Pending], phase_to_skip: str) -> Callable[..., Pending]:
    """A gather or reduce-scatter whose other ranks' parts are missing."""

    def start(out: torch.Tensor, x: torch.Tensor, group: Group, *, phase: str) -> Pending:
        if phase != phase_to_skip:
            return real(out, x, group, phase=phase)
        if out.numel() < x.numel():
            out.copy_(x.view(group.size, *out.shape)[group.rank])
        else:
            out.zero_().view(group.size, *x.shape)[group.rank].copy_(x)
        return Pending(group, "skipped", [])

    return start


def mutants() -> dict[str, tuple[bool, Any, str, Any]]:
    """Name -> (with sequence parallelism, owner, attribute, replacement)."""
    numbers = iter(range(10**6))
    of_phase = {
        phase: skip_sum(regions.start_all_reduce, lambda phase, wanted=phase, **_: phase == wanted)
        for phase in ("forward", "backward")
    }
    second_of_loss = skip_sum(
        loss.start_all_reduce, lambda maximum, **_: not maximum and next(numbers) % 2 == 0
    )
    third_of_loss = skip_sum(
        loss.start_all_reduce, lambda maximum, **_: not maximum and next(numbers) % 2 == 1
    )
    return {
        "g: sum at a region's end": (SUM, regions, "start_all_reduce", of_phase["forward"]),
        "f: sum of gradients at its beginning": (SUM, regions, "start_all_reduce", of_phase["backward"]),
        "gather forwards": (
            SEQUENCE, regions, "start_all_gather", skip_shares(regions.start_all_gather, "forward")
        ),
        "gather backwards": (
            SEQUENCE, regions, "start_all_gather", skip_shares(regions.start_all_gather, "backward")
        ),
        "reduce-scatter forwards": (
            SEQUENCE, regions, "start_reduce_scatter", skip_shares(regions.start_reduce_scatter, "forward")
        ),
        "reduce-scatter backwards": (
            SEQUENCE, regions, "start_reduce_scatter", skip_shares(regions.start_reduce_scatter, "backward")
        ),
        "sum of head norms' gradients": (
            SUM, cut, "start_all_reduce", skip_sum(cut.start_all_reduce, lambda **_: True)
        ),
        "sum of positions' gradients": (
            SEQUENCE, cut, "start_all_reduce", skip_sum(cut.start_all_reduce, lambda **_: True)
        ),
        "largest logit": (
            SUM, loss, "start_all_reduce", skip_sum(loss.start_all_reduce, lambda maximum, **_: maximum)
        ),
        "logit of the target": (SUM, loss, "start_all_reduce", second_of_loss),
        "sum of exponentials": (SUM, loss, "start_all_reduce", third_of_loss),
        "sum of the norm over tp": (
            SUM, clip, "start_all_reduce",
            skip_sum(clip.start_all_reduce, lambda group, **_: group.axis == "tp"),
        ),
        "replicated parameters counted once": (SUM, ModelCut, "counts", lambda self, param: True),
        f"{ONE_KEY}: sum of its gradients": (
            SUM, cut, "start_all_reduce", skip_sum(cut.start_all_reduce, lambda **_: True)
        ),
        f"{ONE_KEY}: counted once": (
            SUM, ModelCut, "counts",
            lambda self, param: self.group.rank == 0 or id(param) not in self.replicated,
        ),
    }  # fmt: skip


def train_mutants() -> dict[str, float]:
    group = build_mesh({"tp": 2}).group("tp")
    found = {}
    for name, (sequence, owner, attribute, replacement) in mutants().items():
        model = "one key" if name.startswith(ONE_KEY) else "llama"
        with mock.patch.object(owner, attribute, replacement):
            got = train(model, stage=0, tp=2, dp=1, sequence=sequence, recompute="none")
        worst = difference(model, got, group)
        found[name] = math.inf if math.isnan(worst) else worst
    return found


@pytest.fixture(scope="module")
def differences() -> list[dict[str, float]]:
    return spawn(train_mutants, 2, timeout_s=250)


@pytest.mark.parametrize("name", mutants())
def test_mutant_is_noticed(differences: list[dict[str, float]], name: str) -> None:
    assert max(found[name] for found in differences) > 1e-4


class Reported(nn.Module):
    """Field report 8: gradients 3 and 4 of a cut parameter, 12 of one that both ranks have."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Parameter(torch.ones(1, dtype=torch.float64))
        self.whole = nn.Parameter(torch.ones(1, dtype=torch.float64))

    def forward(self, factor: torch.Tensor) -> torch.Tensor:
        return factor * self.part + 12 * self.whole


def reported_norm() -> tuple[float, list[float]]:
    group = build_mesh({"tp": 2}).group("tp")
    model = Reported()
    known = ModelCut(group, replicated=frozenset({id(model.whole)}), partial=frozenset())
    replica = data_parallel(model, Group.alone(), cut=known)
    optimizer = ShardedAdamW(replica)
    replica(torch.tensor([3.0, 4.0], dtype=torch.float64)[group.rank]).sum().backward()
    replica.finish_gradients()
    norm = optimizer.clip_grad_norm(1.0)
    optimizer.step()
    return norm, [float(grad) for grad in replica.full_gradients().values()]


def test_norm_counts_replicated_gradients_once() -> None:
    """sqrt(9 + 16 + 144) = 13, not 17.69; the clipped gradients are a thirteenth."""
    for rank, (norm, grads) in enumerate(spawn(reported_norm, 2)):
        assert norm == pytest.approx(13.0, rel=1e-12)
        assert sorted(grads) == pytest.approx(sorted([(3 + rank) / 13, 12 / 13]))
