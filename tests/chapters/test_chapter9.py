"""What chapter 9 says of Llama 3's failures and of what they leave, against the paper and closed forms."""

import math

import pytest

from pdtlib.book.claims.published import LLAMA3_CAUSES, LLAMA3_EFFECTIVE
from pdtlib.plan.reliability import (
    FLEETS,
    goodput,
    overhead,
    probability_enough,
    spares_needed,
    young_interval,
)

LLAMA3 = FLEETS["llama3"]


def test_spares_fill_every_place_of_llama_3_but_one_is_ready_less_often() -> None:
    """Poisson, written out: 15 spares are enough 99.4 % of the time, and one of them is free 98.6 %."""
    fleet = {"nodes": LLAMA3.gpus // 8, "node_mtbf_h": LLAMA3.gpu_hours_per_failure / 8, "repair_h": 24}
    mean = 2048 * 24 / (16384 * 54 * 24 / 419 / 8)
    enough = [sum(math.exp(-mean) * mean**k / math.factorial(k) for k in range(n + 1)) for n in range(16)]
    assert spares_needed(**fleet) == 15
    assert enough[15] == pytest.approx(probability_enough(15, **fleet))
    assert (round(enough[15], 4), round(enough[14], 4)) == (0.9937, 0.9865)


def test_the_causes_are_all_interruptions() -> None:
    assert sum(LLAMA3_CAUSES.values()) == LLAMA3.interruptions
    named = list(LLAMA3_CAUSES.values())[:-1]
    assert named == sorted(named, reverse=True)


def test_half_and_twice_the_best_interval_cost_the_same() -> None:
    """x/2 + 1/(2x) is 1.25 at a half and at two, in units of the least overhead."""
    times = {"mtbf_s": LLAMA3.mtbf_s(2048), "save_s": 30.0}
    best = young_interval(**times)
    least = overhead(**times, interval_s=best)
    for factor in (0.5, 2):
        assert overhead(**times, interval_s=factor * best) == pytest.approx(1.25 * least)


def test_what_failures_leave_of_llama_3() -> None:
    """Daly's expectation written out; ten minutes a restart are near what the authors report."""
    mtbf_s, save_s, restart_s = 54 * 24 * 3600 / 419, 30.0, 600.0
    tau = math.sqrt(2 * save_s * mtbf_s)
    extra = mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1((tau + save_s) / mtbf_s) / tau
    found = goodput(mtbf_s=LLAMA3.mtbf_s(LLAMA3.gpus), save_s=save_s, restart_s=restart_s).goodput
    assert found == pytest.approx(1 / extra)
    assert abs(found - LLAMA3_EFFECTIVE) < 0.04
