"""Ring, tree and hierarchical collectives in the alpha-beta model, and the table of links."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdtlib.plan import presets
from pdtlib.plan.alpha_beta import Link, crossover_bytes, hierarchical_s, ring_s, tree_s

LINK = Link(1e-5, 25e9)
sizes = st.floats(1, 1e12)
groups = st.integers(2, 4096)


@given(sizes, groups)
def test_the_ring_sends_least_and_the_tree_steps_least(size, group):
    no_latency, no_bytes = Link(0.0, 25e9), Link(1e-5, 1e30)
    assert ring_s("all_reduce", size, group, link=no_latency) <= tree_s(size, group, link=no_latency)
    assert tree_s(size, group, link=no_bytes) <= ring_s("all_reduce", size, group, link=no_bytes) * (1 + 1e-9)


@given(groups)
def test_below_the_crossover_the_tree_is_faster(group):
    """A message of 64 GPUs pays for the ring only from some 900 MB on at 10 us and 25 GB/s."""
    cross = crossover_bytes(group, link=LINK)
    for factor, ring_wins in ((0.5, False), (2.0, True)):
        if cross:
            faster = ring_s("all_reduce", factor * cross, group, link=LINK) < tree_s(
                factor * cross, group, link=LINK
            )
            assert faster == ring_wins
    assert round(crossover_bytes(64, link=LINK) / 1e6) == 912


@given(sizes, st.integers(1, 512), st.integers(1, 16))
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(size, nodes, per_node):
    parts = ring_s("reduce_scatter", size, nodes, link=LINK) + ring_s("all_gather", size, nodes, link=LINK)
    assert ring_s("all_reduce", size, nodes, link=LINK) == pytest.approx(parts)
    slow = Link(0.0, 1e9)
    fast = Link(0.0, 1e30)
    whole = hierarchical_s(size, nodes=nodes, per_node=per_node, inside=fast, between=slow)
    assert whole == pytest.approx(ring_s("all_reduce", size / per_node, nodes, link=slow))


def test_one_node_is_its_inside_and_one_rank_sends_nothing():
    inside = Link(2e-6, 300e9)
    whole = hierarchical_s(1e9, nodes=1, per_node=8, inside=inside, between=LINK)
    assert whole == pytest.approx(ring_s("all_reduce", 1e9, 8, link=inside))
    assert tree_s(1e9, 1, link=LINK) == ring_s("all_reduce", 1e9, 1, link=LINK) == 0
    with pytest.raises(ValueError, match="at least one rank"):
        tree_s(1.0, 0, link=LINK)


def test_the_tables_of_links():
    """Rates of one direction, of a GPU: what the vendors print for both ways, halved, and Gb/s over 8."""
    assert {gpu: presets.GPUS[gpu].nvlink_bytes_per_s for gpu in ("V100-SXM2-32", "B200", "MI300X")} == {
        "V100-SXM2-32": presets.INTRA_LINKS["nvlink2"],
        "B200": presets.INTRA_LINKS["nvlink5"],
        "MI300X": presets.INTRA_LINKS["xgmi3"],
    }
    assert presets.GPUS["A100-SXM4-80"].nvlink_bytes_per_s == presets.INTRA_LINKS["nvlink3"]
    assert presets.GPUS["H100-SXM5"].nvlink_bytes_per_s == presets.INTRA_LINKS["nvlink4"]
    generations = [presets.INTRA_LINKS[f"pcie{n}-x16"] for n in (3, 4, 5)]
    assert [round(rate / generations[0]) for rate in generations] == [1, 2, 4]
    assert presets.LINKS["ib-ndr-400"] == 50e9
