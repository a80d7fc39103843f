"""Named axes: who is in which group, in either order of ranks, and what a wrong layout says."""

import pytest

from pdtlib.engine.dist import spawn
from pdtlib.engine.mesh import AXES, Group, build_mesh
from pdtlib.plan.ranks import ARTICLE_ORDER, MEGATRON_ORDER, coordinates, group_of
from pdtlib.plan.spec import Parallel

ORDERS = {"article": ARTICLE_ORDER, "megatron": MEGATRON_ORDER}


def groups_of(parallel: Parallel) -> dict[str, dict[str, object]]:
    found = {}
    for name, order in ORDERS.items():
        mesh = build_mesh(parallel, order=order)
        assert all(mesh.group(axis).ledger is mesh.ledger for axis in AXES)
        found[name] = {
            **{axis: (mesh.group(axis).ranks, mesh.group(axis).rank) for axis in AXES},
            "data": mesh.data.ranks,
            "expert data": mesh.expert_data.ranks,
            "place": mesh.place,
        }
    return found


def test_tp_is_innermost_and_dp_outermost() -> None:
    found = spawn(groups_of, 4, Parallel(dp=2, tp=2))
    one, other = found[0]["article"], found[3]["article"]
    assert [one[axis] for axis in AXES] == [((0, 2), 0), ((0,), 0), ((0,), 0), ((0, 1), 0), ((0,), 0)]
    assert [other[axis] for axis in AXES] == [((1, 3), 1), ((3,), 0), ((3,), 0), ((2, 3), 1), ((3,), 0)]


@pytest.mark.parametrize(
    "parallel",
    [Parallel(dp=2, tp=2, pp=2), Parallel(dp=2, cp=2, pp=2, ep=2), Parallel(dp=2, pp=4, ep=2)],
    ids=["dp2tp2pp2", "dp2cp2pp2ep2", "dp2pp4ep2"],
)
def test_groups_are_those_of_the_plan(parallel: Parallel) -> None:
    """In both orders every axis has the ranks that the plan says; ep and its complement divide dp x cp."""
    for rank, by_order in enumerate(spawn(groups_of, 8, parallel)):
        for name, found in by_order.items():
            order = ORDERS[name]
            for axis in ("dp", "pp", "cp", "tp"):
                ranks = group_of(rank, axis, parallel=parallel, order=order)
                assert found[axis] == (ranks, ranks.index(rank)), (name, axis, rank)
            place = coordinates(rank, parallel=parallel, order=order)
            assert found["place"] == place
            data = found["data"]
            assert len(data) == parallel.dp * parallel.cp
            assert data.index(rank) == place["dp"] * parallel.cp + place["cp"]
            together, alike = found["ep"][0], found["expert data"]
            assert len(together) == parallel.ep
            assert len(alike) == len(data) // parallel.ep
            assert set(together) & set(alike) == {rank}
            assert set(together) | set(alike) <= set(data)


def wrong_layout() -> str:
    with pytest.raises(ValueError, match="parallel") as error:
        build_mesh({"dp": 3, "tp": 2})
    return str(error.value)


def test_degrees_must_multiply_to_the_ranks() -> None:
    assert spawn(wrong_layout, 2)[0] == (
        "parallel: dp=3 × pp=1 × cp=1 × tp=2 = 6, but 2 ranks run; start 6 ranks"
    )


def test_unknown_axis() -> None:
    with pytest.raises(ValueError, match="axis='xp': the mesh has dp, pp, cp, tp, ep"):
        build_mesh().group("xp")
    with pytest.raises(ValueError, match=r"order=\('tp',\)"):
        build_mesh(order=("tp",))


def test_one_process_without_torch_distributed() -> None:
    mesh = build_mesh(Parallel())
    assert [mesh.group(axis).size for axis in AXES] == [1, 1, 1, 1, 1]
    assert mesh.data is mesh.expert_data is mesh.group("dp")
    assert Group.alone("tp").axis == "tp"
