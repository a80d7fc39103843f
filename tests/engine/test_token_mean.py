"""The loss of a global batch is the mean over its valid tokens, however it is cut (field report 6)."""

import contextlib

import pytest
import torch
from torch import nn

from pdtlib.engine.data_parallel import data_parallel
from pdtlib.engine.dist import spawn
from pdtlib.engine.loss import TokenMean
from pdtlib.engine.mesh import Group, build_mesh

RANKS = [[[1.0, 1.0, 1.0, 1.0], [6.0]], [[2.0, 2.0], [9.0]]]


class Slope(nn.Module):
    """loss = w · x with w = 1, so that loss and gradient are both the mean of x."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x


def reported_case(micro_batches: list[list[list[float]]]) -> list[tuple[float, float]]:
    group = build_mesh().group("dp")
    mine = micro_batches[group.rank]
    found = []
    for stage in range(4):
        replica = data_parallel(Slope(), group, stage=stage)
        mean = TokenMean(group, num_valid=sum(map(len, mine)))
        total = torch.zeros((), dtype=torch.float64)
        for number, values in enumerate(mine):
            with contextlib.nullcontext() if number == len(mine) - 1 else replica.no_sync():
                loss = replica(torch.tensor(values, dtype=torch.float64)).sum()
                mean.loss(loss).backward()
            total += loss.detach()
        replica.finish_gradients()
        found.append((mean.report(total), float(replica.full_gradients()["weight"])))
    return found


def test_reported_case_on_every_stage() -> None:
    """Mean of means gives 4.5, per-rank means 3.1667, a forgotten factor 1.4375; right is 23/8."""
    for found in spawn(reported_case, 2, RANKS):
        assert found == [(2.875, 2.875)] * 4


@pytest.mark.parametrize(
    "cut",
    [
        [[[1.0, 1.0], [1.0, 1.0], [6.0, 2.0]], [[2.0], [9.0], []]],
        [[[], [], []], [[1.0, 1.0, 1.0, 1.0], [6.0, 2.0], [2.0, 9.0]]],
        [[[1.0], [1.0, 1.0, 1.0, 6.0, 2.0]], [[2.0], [9.0]]],
    ],
)
def test_any_cut_of_the_same_tokens(cut: list[list[list[float]]]) -> None:
    """Also when a micro-batch, or all of a rank's, has no valid token."""
    for found in spawn(reported_case, 2, cut):
        assert found == [(2.875, 2.875)] * 4


def test_no_valid_token_at_all() -> None:
    with pytest.raises(ValueError, match="num_valid=0 on every rank"):
        TokenMean(Group.alone(), num_valid=0)
