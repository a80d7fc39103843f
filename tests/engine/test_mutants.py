"""Take one collective or one division away, and training must no longer equal one process.

Each mutant removes one call of the engine on both ranks. The unharmed run passes; every mutant must differ by
far more than rounding.
"""

import math
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

import pytest
import torch
import zoo

from pdtlib.engine import clip, loss
from pdtlib.engine.data_parallel import ddp, flat, replica, units, zero
from pdtlib.engine.dist import spawn
from pdtlib.engine.mesh import Group, build_mesh
from pdtlib.engine.pending import Pending

Patch = tuple[Any, str, Any]
MODEL = "mixed"


def skip_in_place(buffer: torch.Tensor, group: Group, **_: Any) -> Pending:
    """No all-reduce, no broadcast: every rank goes on with what it has."""
    return Pending(group, "skipped", [])


def skip_new(x: torch.Tensor, group: Group, **_: Any) -> torch.Tensor:
    return x


def skip_reduce_scatter(out: torch.Tensor, buffer: torch.Tensor, group: Group, **_: Any) -> Pending:
    """Every rank keeps its own slice without the others' part."""
    own = buffer.chunk(group.size)[group.rank].clone()
    return Pending(group, "skipped", []).then(lambda: out.copy_(own))


def skip_all_gather(out: torch.Tensor, shard: torch.Tensor, group: Group, **_: Any) -> Pending:
    """The other ranks' slices stay as they were."""
    slices = out.view(group.size, -1)
    return Pending(group, "skipped", []).then(lambda: slices[group.rank].copy_(shard.clone()))


def skip_gathers_of(phase_to_skip: str) -> Callable[..., Pending]:
    """As :func:`skip_all_gather`, where memory that nobody filled holds zeros."""
    gather = units.start_all_gather

    def start(out: torch.Tensor, shard: torch.Tensor, group: Group, *, phase: str) -> Pending:
        if phase != phase_to_skip:
            return gather(out, shard, group, phase=phase)
        out.zero_()
        return skip_all_gather(out, shard, group)

    return start


add_divided = flat.Flat.add_gradient


def add_undivided(self: flat.Flat, index: int, grad: torch.Tensor) -> None:
    add_divided(self, index, grad * self.num_replicas)


def loss_of_a_mean(self: loss.TokenMean, token_loss_sum: torch.Tensor) -> torch.Tensor:
    return token_loss_sum / self.num_valid


def mutants() -> dict[str, tuple[tuple[int, ...], list[Patch]]]:
    """Name -> the stages that it harms, and what it replaces."""
    every, sharded = (0, 1, 2, 3), (1, 2, 3)
    unsummed = [(module, "start_reduce_scatter", skip_reduce_scatter) for module in (zero, flat)]
    return {
        "initial broadcast of parameters": (every, [(flat, "start_broadcast", skip_in_place)]),
        "initial broadcast of buffers": (every, [(replica, "start_broadcast", skip_in_place)]),
        "all-reduce of gradients": ((0,), [(ddp, "start_all_reduce", skip_in_place)]),
        "reduce-scatter of gradients": (sharded, unsummed),
        "all-gather of updated parameters": ((1, 2), [(replica, "start_all_gather", skip_all_gather)]),
        "gathers in forward": ((3,), [(units, "start_all_gather", skip_gathers_of("forward"))]),
        "gathers in backward": ((3,), [(units, "start_all_gather", skip_gathers_of("backward"))]),
        "sum of the gradient norm": (sharded, [(clip, "start_all_reduce", skip_in_place)]),
        "division by the group's size": (every, [(flat.Flat, "add_gradient", add_undivided)]),
        "sum of token counts": (every, [(loss, "all_reduce", skip_new)]),
        "undoing of the mean over ranks": (every, [(loss.TokenMean, "loss", loss_of_a_mean)]),
    }


def train_mutants() -> dict[tuple[str, int], float]:
    group = build_mesh().group("dp")
    expected = zoo.one_process(MODEL)
    found = {}
    for name, (stages, patches) in {"none": ((0, 1, 2, 3), []), **mutants()}.items():
        for stage in stages:
            with ExitStack() as stack:
                for owner, attribute, replacement in patches:
                    stack.enter_context(mock.patch.object(owner, attribute, replacement))
                got = zoo.with_engine(MODEL, group, seed=group.rank, stage=stage)
            worst = zoo.difference(got, expected).values()
            found[name, stage] = math.inf if any(map(math.isnan, worst)) else max(worst)
    return found


@pytest.fixture(scope="module")
def differences() -> list[dict[tuple[str, int], float]]:
    return spawn(train_mutants, 2, timeout_s=200)


CASES = [(name, stage) for name, (stages, _) in mutants().items() for stage in stages]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_unharmed_run_equals_one_process(differences: list[dict[tuple[str, int], float]], stage: int) -> None:
    assert all(found["none", stage] < 1e-11 for found in differences)


@pytest.mark.parametrize(("name", "stage"), CASES)
def test_mutant_is_noticed(differences: list[dict[tuple[str, int], float]], name: str, stage: int) -> None:
    assert max(found[name, stage] for found in differences) > 1e-4
