"""Without any one of its messages, counts or divisions, expert parallelism no longer equals one process."""

import math
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from test_expert_parallel import DROPPING, MODEL, Layout, difference, job_of, train

from pdtlib.engine import clip
from pdtlib.engine.data_parallel import cut
from pdtlib.engine.data_parallel.flat import Flat
from pdtlib.engine.dist import spawn
from pdtlib.engine.expert_parallel import exchange, experts
from pdtlib.engine.mesh import Group, build_mesh
from pdtlib.engine.models.balance import Balance
from pdtlib.engine.models.moe import MoE
from pdtlib.engine.pending import Pending
from pdtlib.engine.tensor_parallel import regions

EP2: Layout = (MODEL, {"dp": 2, "ep": 2}, {})
ZERO: Layout = (MODEL, {"dp": 2, "ep": 2}, {"zero_stage": 1})
TP2: Layout = (MODEL, {"tp": 2}, {})
CP2: Layout = (MODEL, {"cp": 2, "ep": 2}, {})


def unless(real: Callable[..., Pending], wanted: Callable[..., bool]) -> Callable[..., Pending]:
    """An all-reduce that is not done where ``wanted`` says so."""

    def start(buffer: torch.Tensor, group: Group, *, phase: str, maximum: bool = False) -> Pending:
        if wanted(group=group, phase=phase):
            return Pending(group, "skipped", [])
        return real(buffer, group, phase=phase, maximum=maximum)

    return start


def lost(phase_to_lose: str) -> Callable[..., Pending]:
    """An all-to-all of which nothing arrives in one phase."""
    real = exchange.start_all_to_all

    def start(out: torch.Tensor, rows: torch.Tensor, group: Group, *, phase: str, **splits: Any) -> Pending:
        pending = real(out, rows, group, phase=phase, **splits)
        return pending.then(out.zero_) if phase == phase_to_lose else pending

    return start


def average_over_group(self: Flat, *args: Any, **options: Any) -> None:
    make_flat(self, *args, **{**options, "num_replicas": None})


def attach_to_all(self: Balance, *args: torch.Tensor) -> torch.Tensor:
    self.copies = 1
    return attach(self, *args)


make_flat, attach, capacity = Flat.__init__, Balance.attach, MoE.capacity

MUTANTS: dict[str, tuple[Layout, Any, str, Any]] = {
    # name: (layout, owner, attribute, replacement)
    "rows to the experts and back": (EP2, exchange, "start_all_to_all", lost("forward")),
    "gradients on the same ways": (EP2, exchange, "start_all_to_all", lost("backward")),
    "division by all replicas": (EP2, Flat, "__init__", average_over_group),
    "division by all replicas, with ZeRO": (ZERO, Flat, "__init__", average_over_group),
    "norm over the experts' ranks": (
        EP2, clip, "start_all_reduce", unless(clip.start_all_reduce, lambda group, **_: group.axis == "ep")
    ),
    "counts of a micro-batch over cp": (
        CP2, experts, "start_all_reduce", unless(experts.start_all_reduce, lambda **_: True)
    ),
    "the router's gradient over tp": (
        TP2, cut, "start_all_reduce", unless(cut.start_all_reduce, lambda **_: True)
    ),
    "the balancing loss once, not once a tp rank": (TP2, Balance, "attach", attach_to_all),
    "sum of a region of experts": (
        TP2, regions, "start_all_reduce",
        unless(regions.start_all_reduce, lambda phase, **_: phase == "forward"),
    ),
    "its gradient's sum": (
        TP2, regions, "start_all_reduce",
        unless(regions.start_all_reduce, lambda phase, **_: phase == "backward"),
    ),
    "capacity of a rank's own tokens": (
        (DROPPING, {"dp": 2, "ep": 2}, {}), MoE, "capacity", lambda self, tokens: capacity(self, 2 * tokens)
    ),
}  # fmt: skip


def train_mutants() -> dict[str, float]:
    found = {}
    for name, (layout, owner, attribute, replacement) in {"none": (EP2, None, "", None), **MUTANTS}.items():
        job = job_of(layout)
        mesh = build_mesh(job.parallel)
        if owner is None:
            got = train(job, mesh)
        else:
            with mock.patch.object(owner, attribute, replacement):
                got = train(job, mesh)
        worst = difference(job, mesh, got)
        found[name] = math.inf if math.isnan(worst) else worst
    return found


@pytest.fixture(scope="module")
def differences() -> list[dict[str, float]]:
    return spawn(train_mutants, 2, timeout_s=280)


def test_nothing_left_out_is_equal(differences: list[dict[str, float]]) -> None:
    assert max(found["none"] for found in differences) < 1e-9


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_noticed(differences: list[dict[str, float]], name: str) -> None:
    assert max(found[name] for found in differences) > 1e-5
