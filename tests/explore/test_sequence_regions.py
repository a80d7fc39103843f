"""Explorer sequence-regions shows what the chapter on sequence parallelism says."""

import pytest

from pdtlib.explore import catalog
from pdtlib.explore.controls import ControlError
from pdtlib.explore.explorers.sequence_ways import CALLS, MODES, held
from pdtlib.figures.sequence_regions import REGIONS
from pdtlib.plan.job import loads
from pdtlib.plan.layer_ledger import layer_messages
from pdtlib.plan.predict import predict

EXPLORER = catalog.get("sequence-regions")
GIB = 2**30
COLLECTIVES = {"AR": ["all_reduce"], "AG": ["all_gather"], "RS": ["reduce_scatter"]}
COLLECTIVES["RS+AG"] = ["reduce_scatter", "all_gather"]


def readouts(**state):
    return {readout.name: readout for readout in EXPLORER.view_of(state).readouts}


@pytest.mark.parametrize(
    ("mode", "gigabytes"), [("tp", 7.52), ("sp", 7.52), ("ulysses", 0.53), ("ring", 0.47)]
)
def test_70b_at_131072_positions_on_eight_ranks(mode, gigabytes):
    shown = readouts(mode=mode, model="llama3-70b", seq=131072, ranks=8)
    assert round(shown["sent"].value / 1e9, 2) == gigabytes
    assert shown["sent"].text == f"{gigabytes} GB"


@pytest.mark.parametrize(("mode", "gibibytes"), [("tp", 51.75), ("sp", 32.0625)])
def test_175b_with_and_without_sequence_parallelism(mode, gibibytes):
    shown = readouts(mode=mode, model="gpt3-175b", seq=2048, ranks=8, flash=False)
    assert shown["kept"].value == gibibytes * GIB


@pytest.mark.parametrize("mode", MODES)
def test_the_table_has_what_each_way_sends_and_keeps(mode):
    shown = readouts(mode=mode)
    view = EXPLORER.view_of({"mode": "tp"})
    row = view.table.rows[MODES.index(mode)]
    assert row[-2:] == (shown["sent"].text, shown["kept"].text)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("mode", ["tp", "sp"])
def test_the_strip_has_the_messages_of_the_ledger(mode, direction):
    """As many of each kind as a layer's ledger counts."""
    drawn = [name for call in CALLS[mode, direction] for name in COLLECTIVES[call.short]]
    job = loads(EXPLORER.view_of({"mode": mode}).job)
    counted = {m.collective: m.count for m in layer_messages(job) if m.phase == direction}
    assert {name: drawn.count(name) for name in set(drawn)} == counted


@pytest.mark.parametrize("mode", MODES)
def test_the_ranks_together_have_every_part_once(mode):
    ranks = 4
    for region, name in enumerate(REGIONS):
        parts = [held(mode, ranks, rank)[region] for rank in range(ranks)]
        if parts[0].cut == "whole":
            assert mode == "tp"
            assert name not in ("qkv", "core", "mlp")
        else:
            together = sorted(part for how in parts for part in how.parts)
            assert together == list(range(parts[0].of))


@pytest.mark.parametrize("mode", MODES)
def test_kept_is_what_pdt_predict_prints(mode):
    """But for what is outside the layers, a small share."""
    state = {"mode": mode, "model": "llama3-8b", "seq": 65536}
    shown = readouts(**state)["kept"].value
    stage = predict(loads(EXPLORER.view_of(state).job))["memory"]["stages"][0]
    assert shown <= stage["activations"] <= 1.05 * shown


def test_what_ulysses_cannot_deal_out_is_refused_beside_the_ranks():
    with pytest.raises(ControlError, match="8 key and value heads") as caught:
        EXPLORER.view_of({"mode": "ulysses", "ranks": 16})
    assert caught.value.field == "ranks"
    row = EXPLORER.view_of({"mode": "ring", "ranks": 16}).table.rows[MODES.index("ulysses")]
    assert row[-1] == "not possible here"
