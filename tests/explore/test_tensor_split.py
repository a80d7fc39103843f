"""Explorer tensor-split shows what the chapter on tensor parallelism says."""

import pytest

from pdtlib.explore import catalog
from pdtlib.explore.controls import ControlError
from pdtlib.plan import presets
from pdtlib.plan.job import from_dict
from pdtlib.plan.ledger import messages
from pdtlib.plan.params import tensors
from pdtlib.plan.placement import cut

EXPLORER = catalog.get("tensor-split")


def readouts(**state):
    return {readout.name: readout for readout in EXPLORER.view_of(state).readouts}


def test_70b_on_eight_ranks():
    shown = readouts(model="llama2-70b", tp=8, seq=4096)
    assert shown["calls"].text == "2 + 2"
    assert shown["message"].text == "67.1 MB"
    assert shown["sent"].text == "37.6 GB"


@pytest.mark.parametrize("model", ["gpt3-175b", "llama3-8b"])
def test_messages_are_those_of_the_ledger_without_the_ends(model):
    shown = readouts(model=model, tp=4, seq=2048, micro_batch=2)
    vocab = -(-presets.model(model).vocab // 4) * 4
    tables = {
        "model": {"preset": model, "seq": 2048, "vocab": vocab},
        "train": {"micro_batch": 2},
        "parallel": {"tp": 4},
    }
    rows = [m for m in messages(from_dict(tables)) if m.phase in ("forward", "backward")]
    ends = 2 * rows[0].sent_bytes_per_rank / rows[0].count  # the embedding's and the head's
    assert shown["sent"].value == pytest.approx(sum(m.sent_bytes_per_rank for m in rows) - ends)


def test_a_slow_link_costs_more_than_the_arithmetic():
    near, far = readouts(link="nvlink"), readouts(link="ib-hdr-200")
    assert near["share"].value < 0.1 < 0.5 < far["share"].value
    assert far["messages"].value == pytest.approx(far["sent"].value / 25e9)
    assert far["share"].value == pytest.approx(
        far["messages"].value / (far["messages"].value + far["compute"].value)
    )


@pytest.mark.parametrize("tp", [2, 8, 16])
@pytest.mark.parametrize("part", ["mlp", "attention"])
def test_the_table_has_the_shapes_of_the_placement(part, tp):
    """The plan's shapes are torch's, [out, in]; the page shows in × out."""
    model = presets.model("llama3-70b")
    names = {
        "gate": "mlp.gate",
        "up": "mlp.up",
        "down": "mlp.down",
        **{f"W_{x.upper()}": f"attn.{x}" for x in "qkvo"},
    }
    shapes = {spec.name: cut(spec, model=model, tp=tp).shape for spec in tensors(model)}
    for row in EXPLORER.view_of({"model": "llama3-70b", "part": part, "tp": tp}).table.rows:
        out, into = shapes[f"layers.0.{names[row[0]]}.weight"]
        assert row[2] == f"{into:,} × {out:,}"


def test_repeated_heads_are_said_to_be_repeated():
    view = EXPLORER.view_of({"model": "llama3-70b", "part": "attention", "tp": 16, "rank": 3})
    assert "query heads 12–15, key and value heads 1," in view.summary
    assert any("each lives on 2 ranks" in note for note in view.notes)
    assert not any("lives on" in note for note in EXPLORER.view_of({"tp": 8}).notes)


def test_what_does_not_divide_is_refused_beside_the_ranks():
    with pytest.raises(ControlError, match="40 query heads") as caught:
        EXPLORER.view_of({"model": "qwen2.5-32b", "tp": 16})
    assert caught.value.field == "tp"


@pytest.mark.parametrize(("direction", "end"), [("forward", "g"), ("backward", "f")])
def test_one_end_communicates_in_each_direction(direction, end):
    labels = EXPLORER.view_of({"direction": direction}).figure["layout"]["annotations"]
    coloured = {label["text"] for label in labels if label["font"]["color"] == "@c2"}
    assert f"<b>{end}</b>" in coloured
    assert len(coloured) == 2
    alone = EXPLORER.view_of({"direction": direction, "tp": 1}).figure["layout"]["annotations"]
    assert not [label for label in alone if label["font"]["color"] == "@c2"]
