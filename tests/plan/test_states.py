"""Model-state memory: ZeRO's own table, the article's numbers put right, and field report A03."""

import math

import pytest

from pdtlib.plan import flops
from pdtlib.plan.states import (
    ACCOUNTINGS,
    ZERO,
    engine_accounting,
    fits_from,
    largest_model,
    whole_and_sharded,
    zero_state_bytes,
)

ARTICLE = ACCOUNTINGS["no-master-12"]

# Rajbhandari 2020 (arXiv:1910.02054), Table 1, 7.5B parameters: GB per device for stages 1, 2, 3 by ranks.
ZERO_TABLE_1 = {
    1: (120.0, 120.0, 120.0),
    4: (52.5, 41.25, 30.0),
    16: (35.625, 21.5625, 7.5),
    64: (31.40625, 16.640625, 1.875),
    256: (30.3515625, 15.41015625, 0.46875),
    1024: (30.087890625, 15.1025390625, 0.1171875),
}


@pytest.mark.parametrize(("dp", "expected"), ZERO_TABLE_1.items())
def test_zero_table_1(dp, expected):
    assert zero_state_bytes(7.5e9, dp=dp, stage=0).total == 120e9
    assert tuple(zero_state_bytes(7.5e9, dp=dp, stage=stage).total / 1e9 for stage in (1, 2, 3)) == expected


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        ("no-master-12", 840),
        ("zero-16", 1120),
        ("megatron-18", 1260),
        ("megatron-fp16-20", 1400),
        ("fp32-16", 1120),
    ],
)
def test_accountings_of_70b(name, gigabytes):
    assert 70e9 * ACCOUNTINGS[name].total / 1e9 == gigabytes


@pytest.mark.parametrize(
    ("accounting", "expected"), [(ZERO, (1120, 385, 262.5, 140)), (ARTICLE, (840, 350, 227.5, 105))]
)
def test_70b_on_eight_ranks(accounting, expected):
    found = [zero_state_bytes(70e9, dp=8, stage=stage, accounting=accounting).total for stage in range(4)]
    assert tuple(total / 1e9 for total in found) == expected


def test_the_article_counts_only_what_is_sharded():
    """Its 70, 87.5 and 105 GB are the sharded parts alone, so they seem to grow with the stage."""
    shares = [70 * whole_and_sharded(ARTICLE, stage)[1] / 8 for stage in (1, 2, 3)]
    assert shares == [70, 87.5, 105]


@pytest.mark.parametrize(("accounting", "expected"), [(ZERO, 14), (ARTICLE, 11)])
def test_70b_fits_80_gb_cards_only_under_stage_3(accounting, expected):
    found = [fits_from(70e9, capacity_bytes=80e9, stage=stage, accounting=accounting) for stage in range(4)]
    assert found == [None, None, None, expected]


@pytest.mark.parametrize(("accounting", "expected"), [(ZERO, 16), (ARTICLE, 12)])
def test_70b_fits_with_ten_gigabytes_kept_free(accounting, expected):
    assert fits_from(70e9, capacity_bytes=70e9, stage=3, accounting=accounting) == expected


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("num_params", [1e9, 4.9e9, 5e9, 14e9, 20e9, 39e9, 40e9, 70e9])
def test_fits_from_is_the_smallest_that_fits(stage, num_params):
    found = fits_from(num_params, capacity_bytes=80e9, stage=stage)

    def fits(dp):
        return zero_state_bytes(num_params, dp=dp, stage=stage).total <= 80e9

    if found is None:
        assert not fits(10**6)
    else:
        assert fits(found)
        assert found == 1 or not fits(found - 1)


@pytest.mark.parametrize(
    ("name", "billions"), [("no-master-12", 6.7), ("zero-16", 5.0), ("megatron-18", 4.4)]
)
def test_largest_model_on_one_card(name, billions):
    found = largest_model(80e9, dp=1, stage=0, accounting=ACCOUNTINGS[name])
    assert round(found / 1e9, 1) == billions


def test_largest_model_under_each_stage():
    assert [round(largest_model(80e9, dp=8, stage=stage) / 1e9, 1) for stage in (1, 2)] == [14.5, 21.3]
    assert [largest_model(80e9, dp=None, stage=stage) / 1e9 for stage in (0, 1, 2)] == [5, 20, 40]
    assert largest_model(80e9, dp=None, stage=3) == math.inf


def test_zero_2_shards_gradients_too():
    """Field report: an estimator left 2 bytes of gradients whole and printed 29.75 GB."""
    totals = [zero_state_bytes(7e9, dp=64, stage=stage).total for stage in (1, 2, 3)]
    assert totals == [29_312_500_000, 15_531_250_000, 1_750_000_000]
    with_fp32_copy = zero_state_bytes(7e9, dp=64, stage=2, accounting=ACCOUNTINGS["megatron-fp16-20"])
    assert with_fp32_copy.total == 15_968_750_000
    assert totals[0] - totals[1] == 2 * 7e9 * (1 - 1 / 64)


def test_megatrons_distributed_optimizer():
    """Its guide: 6 + 12/d for bf16 with fp32 gradients, 4 + 16/d for fp16, 8 + 8/d for fp32."""
    for name, whole, sharded in [("megatron-18", 6, 12), ("megatron-fp16-20", 4, 16), ("fp32-16", 8, 8)]:
        assert whole_and_sharded(ACCOUNTINGS[name], 1) == (whole, sharded)


@pytest.mark.parametrize(
    ("precision", "grad_precision", "expected"),
    [
        ("fp32", "same", (4, 4, 8)),
        ("fp32", "fp32", (4, 4, 8)),
        ("bf16", "same", (2, 2, 12)),
        ("bf16", "fp32", (2, 4, 12)),
        ("fp16", "same", (2, 2, 12)),
        ("fp16", "fp32", (2, 4, 12)),
    ],
)
def test_what_the_engine_holds(precision, grad_precision, expected):
    found = engine_accounting(precision, grad_precision)
    assert (found.params, found.grads, found.optimizer) == expected


@pytest.mark.parametrize("wrong", [{"dp": 0, "stage": 0}, {"dp": 1, "stage": 4}, {"dp": 1, "stage": -1}])
def test_wrong_arguments_are_refused(wrong):
    with pytest.raises(ValueError, match="valid: "):
        zero_state_bytes(1e9, **wrong)


# Rows of the article's table of configurations: parameters, tp x pp, dp, stage; GB a GPU, and with stage 1;
# days for 1T tokens on that many A100s at 40 % of peak.
ARTICLE_ROWS = [
    (7e9, 1, 8, 2, 26.25, 24.5, 487),
    (13e9, 2, 8, 2, 24.4, 35.75, 452),
    (70e9, 32, 4, 3, 8.75, 15.3, 304),
    (175e9, 64, 8, 3, 5.5, 15.0, 190),
    (530e9, 128, 8, 3, 8.3, 22.8, 288),
]


@pytest.mark.parametrize(("params", "ranks", "dp", "stage", "gigabytes", "stage_1", "days"), ARTICLE_ROWS)
def test_the_articles_table_of_configurations(params, ranks, dp, stage, gigabytes, stage_1, days):
    share = params / ranks
    assert zero_state_bytes(share, dp=dp, stage=stage).total / 1e9 == pytest.approx(gigabytes, abs=0.06)
    if stage == 3:
        assert zero_state_bytes(share, dp=dp, stage=1).total / 1e9 == pytest.approx(stage_1, abs=0.06)
    work = flops.training_flops(params, num_tokens=1e12)
    took = flops.training_seconds(work, num_gpus=ranks * dp, peak_flops=312e12, mfu=0.4)
    assert round(took / 86400) == days


def test_sharding_105_gb_over_tensor_parallel_ranks():
    """70B under stage 3 on 8 ranks, in the article's count, over tp 16: 105 / 16 = 6.56 GB."""
    total = zero_state_bytes(70e9, dp=8, stage=3, accounting=ARTICLE).total
    assert round(total / 16 / 1e9, 2) == 6.56
