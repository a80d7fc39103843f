"""Shares of a step against utilisation: the article's three scales do not fit together."""

import math

import pytest

from pdtlib.plan.efficiency import (
    ARTICLE_BANDS,
    best_share,
    kernels_needed,
    left_to_compute,
    mfu_bound,
    micro_batches_needed,
)
from pdtlib.plan.schedule import Costs, build, simulate

A100 = best_share("A100-SXM4-80")


def bound(name, kernels):
    band = ARTICLE_BANDS[name]
    return mfu_bound(communication=band.communication, bubble=band.bubble, kernels=kernels)


def needed(name):
    band = ARTICLE_BANDS[name]
    return kernels_needed(band.mfu, communication=band.communication, bubble=band.bubble)


def test_35_and_20_percent_leave_at_most_39_1_on_an_a100():
    assert round(100 * A100, 1) == 86.9
    assert round(100 * bound("acceptable", A100), 1) == 39.1
    assert bound("acceptable", A100) < ARTICLE_BANDS["acceptable"].mfu
    assert round(100 * needed("acceptable")) == 89


def test_20_and_10_percent_need_kernels_at_71_percent():
    assert round(100 * needed("excellent")) == 71
    assert bound("excellent", A100) > ARTICLE_BANDS["excellent"].mfu


def test_the_bound_and_what_is_needed_are_inverse():
    for mfu in (0.2, 0.4, 0.55):
        kernels = kernels_needed(mfu, communication=0.15, bubble=0.08)
        assert mfu_bound(communication=0.15, bubble=0.08, kernels=kernels) == pytest.approx(mfu)
    assert kernels_needed(0.4, communication=0.6, bubble=0.4) == math.inf


@pytest.mark.parametrize(
    ("share", "expected"), [(0.1, {4: 27, 8: 63, 16: 135}), (0.2, {4: 12, 8: 28, 16: 60})]
)
def test_micro_batches_for_a_bubble(share, expected):
    """The fewest, as the simulator says too: with one less the bubble is larger."""
    for stages, micro_batches in expected.items():
        assert micro_batches_needed(share, stages=stages) == micro_batches
        simulated = [
            simulate(
                build("1f1b", stages=stages, microbatches=m),
                Costs(forward=1, backward_input=1, backward_weight=1),
            ).bubble_fraction
            for m in (micro_batches, micro_batches - 1)
        ]
        assert simulated[0] <= share + 1e-12 < simulated[1]
    assert micro_batches_needed(share, stages=4, chunks=3) == expected[4] / 3


@pytest.mark.parametrize(
    ("communication", "bubble", "field"),
    [(-0.1, 0.2, "communication"), (0.2, 1.2, "bubble"), (0.7, 0.4, r"communication \+ bubble")],
)
def test_shares_that_no_step_can_have_are_refused(communication, bubble, field):
    with pytest.raises(ValueError, match=field):
        left_to_compute(communication=communication, bubble=bubble)
