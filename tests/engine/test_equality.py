"""Every stage equals one process in float64: loss, gradients, norm, parameters and both moments.

World sizes 1 to 4, three steps, two micro-batches of uneven token counts, clipping, two parameter groups.
"""

from functools import cache
from typing import Any

import pytest
import zoo

from pdtlib.engine.dist import spawn
from pdtlib.engine.mesh import Group, build_mesh

VARIANTS: dict[str, dict[str, Any]] = {
    "ddp": {"stage": 0},
    "zero1": {"stage": 1},
    "zero2": {"stage": 2},
    "zero3": {"stage": 3},
    "zero3-keep": {"stage": 3, "reshard_after_forward": False},
    "zero3-one-unit": {"stage": 3, "blocks": []},
}
TOLERANCE = 1e-11


@cache
def reference(model: str) -> dict[str, Any]:
    return zoo.one_process(model)


def train_everything() -> dict[tuple[str, str], dict[str, float]]:
    group = build_mesh().group("dp")
    found = {}
    for model in zoo.MODELS:
        expected = reference(model)
        for name, options in VARIANTS.items():
            # Other seeds on other ranks: training must start from rank 0's parameters.
            got = zoo.with_engine(model, group, seed=group.rank, **options)
            found[model, name] = zoo.difference(got, expected)
    return found


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def differences(request: pytest.FixtureRequest) -> list[dict[tuple[str, str], dict[str, float]]]:
    return spawn(train_everything, request.param, timeout_s=200)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("model", zoo.MODELS)
def test_equals_one_process(
    differences: list[dict[tuple[str, str], dict[str, float]]], model: str, variant: str
) -> None:
    for rank, found in enumerate(differences):
        worst = found[model, variant]
        assert max(worst.values()) < TOLERANCE, f"rank {rank}: {worst}"


def test_without_torch_distributed() -> None:
    """A group of one needs no process group."""
    for options in VARIANTS.values():
        got = zoo.with_engine("mixed", Group.alone(), **options)
        assert max(zoo.difference(got, reference("mixed")).values()) < TOLERANCE


def test_reference_learns() -> None:
    """What the others are compared with moves: each step changes the loss, clipping is active, moments are
    not 0."""
    for model in zoo.MODELS:
        expected = reference(model)
        assert expected["losses"][-1] < expected["losses"][0]
        assert min(expected["norms"]) > zoo.CLIP
        moved = [float(tensor.abs().max()) for tensor in expected["exp_avg"].values()]
        assert sum(value > 0 for value in moved) > len(moved) / 2
