"""Explorers mfu and thresholds show what the chapter on efficiency says."""

import pytest

from pdtlib.explore import catalog
from pdtlib.plan import flops, params, presets

MFU, BANDS = catalog.get("mfu"), catalog.get("thresholds")


def readouts(explorer, **state):
    return {readout.name: readout for readout in explorer.view_of(state).readouts}


def shares(**state):
    return {row[0]: row[-1] for row in MFU.view_of(state).table.rows}


def test_35_and_20_percent_leave_at_most_39_1_percent():
    shown = readouts(BANDS)
    assert (shown["bound"].text, shown["bound"].tone) == ("39.1 %", "bad")
    assert (shown["needed"].text, shown["needed"].tone) == ("88.9 %", "bad")
    assert "can't be met" in BANDS.view_of().summary


def test_20_and_10_percent_need_kernels_at_71_percent():
    shown = readouts(BANDS, communication=0.2, bubble=0.1, mfu=0.5)
    assert (shown["needed"].text, shown["needed"].tone) == ("71.4 %", "")
    assert shown["bound"].tone == "good"


@pytest.mark.parametrize(
    ("stages", "chunks", "bubble", "expected"),
    [(4, 1, 0.1, 27), (8, 1, 0.2, 28), (16, 1, 0.1, 135), (4, 3, 0.1, 9)],
)
def test_micro_batches_for_a_bubble(stages, chunks, bubble, expected):
    assert readouts(BANDS, stages=stages, chunks=chunks, bubble=bubble)["micro_batches"].value == expected


def test_a_step_is_the_sum_of_its_parts():
    for state in ({}, {"communication": 0.5, "bubble": 0.5}, {"gpu": "GB300"}, {"kernels": 0.6}):
        bars = BANDS.view_of(state).figure["data"]
        for row in range(3):
            assert sum(bar["x"][row] for bar in bars) == pytest.approx(100)
            assert all(bar["x"][row] >= -1e-9 for bar in bars)


def test_the_published_run_of_530b_is_56_percent():
    """Korthikanti 2022, table 5: 37.83 s a step of 280 sequences of 2,048 tokens on 280 GPUs."""
    assert readouts(MFU)["chosen"].text == "56.0 %"
    assert MFU.control("rate").default == round(280 * 2048 / 37.83)


def test_each_way_to_count():
    model = presets.model("mt-nlg-530b")
    rate = MFU.control("rate").default / 280 / 312e12
    assert readouts(MFU)["six"].value == pytest.approx(6 * params.count(model).total * rate)
    assert shares()["over sparse peak"] == "28.0 %"
    for attention in ("full", "causal", "none"):
        conventions = flops.Conventions(attention=attention, logits=False, embeddings=True)
        shown = readouts(MFU, attention=attention, logits=False, embeddings=True)
        expected = flops.model_flops_per_token(model, conventions=conventions) * rate
        assert shown["chosen"].value == pytest.approx(expected)


def test_hfu_counts_what_runs_again():
    none, core, full = (
        readouts(MFU, recompute=name)["hardware"].value for name in ("none", "selective", "full")
    )
    assert none == readouts(MFU)["chosen"].value
    assert none < core < full < 4 / 3 * none


def test_6nd_with_experts_that_did_nothing():
    shown = shares(model="mixtral-8x7b", rate="100K", gpus=64)
    assert float(shown["6ΨD, all experts"][:-2]) > 3 * float(shown["6ΨD"][:-2])
    assert "6ΨD, all experts" not in shares()


def test_more_than_peak_is_called_wrong():
    view = MFU.view_of({"gpus": 128})
    assert view.readouts[0].tone == "bad"
    assert "above 100 %" in view.notes[0]
