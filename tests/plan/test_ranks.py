"""Ranks in the mesh: groups of the article's 1,024 GPUs, and that groups partition the ranks."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdtlib.plan.ranks import (
    ARTICLE_ORDER,
    AXES,
    MEGATRON_ORDER,
    coordinates,
    group_of,
    groups,
    nodes_of,
    rank_at,
)
from pdtlib.plan.spec import Parallel

CUBE = Parallel(dp=16, tp=8, pp=8)
degrees = st.integers(1, 4)
orders = st.permutations(AXES)


def test_rank_0_of_16_8_8_in_the_articles_order():
    def found(axis):
        return group_of(0, axis, parallel=CUBE, order=ARTICLE_ORDER)

    assert found("tp") == tuple(range(8))
    assert found("pp") == tuple(range(0, 57, 8))
    assert found("dp") == tuple(range(0, 961, 64))


def test_numbers_of_groups():
    counts = {axis: len(groups(axis, parallel=CUBE, order=ARTICLE_ORDER)) for axis in ("dp", "tp", "pp")}
    assert counts == {"dp": 64, "tp": 128, "pp": 128}


@pytest.mark.parametrize(("order", "dp_nodes", "pp_nodes"), [(MEGATRON_ORDER, 16, 8), (ARTICLE_ORDER, 16, 8)])
def test_tensor_parallelism_stays_in_the_node_in_both_orders(order, dp_nodes, pp_nodes):
    for axis, nodes in (("tp", 1), ("dp", dp_nodes), ("pp", pp_nodes)):
        group = group_of(5, axis, parallel=CUBE, order=order)
        assert len(nodes_of(group, gpus_per_node=8)) == nodes


def test_the_orders_differ_in_what_is_near():
    """In Megatron's order the next node holds the next replica, in the article's the next stage."""
    for order, nearest in ((MEGATRON_ORDER, 8), (ARTICLE_ORDER, 64)):
        assert group_of(0, "dp", parallel=CUBE, order=order)[1] == nearest


@settings(max_examples=40, deadline=None)
@given(degrees, degrees, degrees, degrees, orders)
def test_groups_partition_the_ranks(dp, tp, pp, cp, order):
    parallel = Parallel(dp=dp, tp=tp, pp=pp, cp=cp)
    for rank in range(parallel.world_size):
        place = coordinates(rank, parallel=parallel, order=order)
        assert rank_at(place, parallel=parallel, order=order) == rank
    for axis in AXES:
        found = groups(axis, parallel=parallel, order=order)
        assert sorted(rank for group in found for rank in group) == list(range(parallel.world_size))
        assert all(len(group) == getattr(parallel, axis) for group in found)


@pytest.mark.parametrize(
    "call",
    [
        lambda: coordinates(1024, parallel=CUBE),
        lambda: coordinates(-1, parallel=CUBE),
        lambda: coordinates(0, parallel=CUBE, order=("tp", "dp")),
        lambda: rank_at({"tp": 8, "cp": 0, "dp": 0, "pp": 0}, parallel=CUBE),
        lambda: group_of(0, "ep", parallel=CUBE),
    ],
)
def test_wrong_arguments_are_refused(call):
    with pytest.raises(ValueError, match="valid: "):
        call()
