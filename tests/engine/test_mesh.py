"""Named axes: who is in which group, and what a wrong layout says."""

import pytest

from pdtlib.engine.dist import spawn
from pdtlib.engine.mesh import AXES, Group, build_mesh
from pdtlib.plan.spec import Parallel


def groups_of(parallel: Parallel) -> dict[str, tuple[tuple[int, ...], int]]:
    mesh = build_mesh(parallel)
    assert all(mesh.group(axis).ledger is mesh.ledger for axis in AXES)
    return {axis: (mesh.group(axis).ranks, mesh.group(axis).rank) for axis in AXES}


def test_tp_is_innermost_and_dp_outermost() -> None:
    found = spawn(groups_of, 4, Parallel(dp=2, tp=2))
    assert found[0] == {"dp": ((0, 2), 0), "pp": ((0,), 0), "cp": ((0,), 0), "tp": ((0, 1), 0)}
    assert found[3] == {"dp": ((1, 3), 1), "pp": ((3,), 0), "cp": ((3,), 0), "tp": ((2, 3), 1)}


def wrong_layout() -> str:
    with pytest.raises(ValueError, match="parallel") as error:
        build_mesh({"dp": 3, "tp": 2})
    return str(error.value)


def test_degrees_must_multiply_to_the_ranks() -> None:
    assert spawn(wrong_layout, 2)[0] == (
        "parallel: dp=3 × pp=1 × cp=1 × tp=2 = 6, but 2 ranks run; start 6 ranks"
    )


def test_unknown_axis() -> None:
    with pytest.raises(ValueError, match="axis='ep': the mesh has dp, pp, cp, tp"):
        build_mesh().group("ep")


def test_one_process_without_torch_distributed() -> None:
    mesh = build_mesh(Parallel())
    assert [mesh.group(axis).size for axis in AXES] == [1, 1, 1, 1]
    assert Group.alone("tp").axis == "tp"
