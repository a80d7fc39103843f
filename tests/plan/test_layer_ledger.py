"""One layer's messages, and which heads a rank has: the numbers of the chapters on tensor and sequence."""

from dataclasses import replace

import pytest

from pdtlib.plan import presets
from pdtlib.plan.flops import Conventions, forward_per_token
from pdtlib.plan.heads import rank_heads
from pdtlib.plan.job import from_dict
from pdtlib.plan.layer_ledger import layer_messages, ring_hides_from, sent_bytes_of_layer
from pdtlib.plan.ledger import messages
from pdtlib.plan.params import tensors
from pdtlib.plan.placement import cut

LONG = {"preset": "llama3-70b", "seq": 131072}


def long_job(parallel, **train):
    return from_dict({"model": LONG, "train": train, "parallel": parallel})


def test_two_all_reduces_a_layer_each_way():
    rows = layer_messages(from_dict({"model": {"preset": "llama2-70b"}, "parallel": {"tp": 8}}))
    assert [(row.collective, row.phase, row.count) for row in rows] == [
        ("all_reduce", "forward", 2),
        ("all_reduce", "backward", 2),
    ]
    assert {round(row.message_bytes / 1e6, 1) for row in rows} == {67.1}
    layer = sum(row.sent_bytes_per_rank for row in rows)
    assert round(80 * layer / 1e9, 1) == 37.6


def test_sequence_parallelism_has_an_all_gather_and_a_reduce_scatter_for_each():
    rows = layer_messages(long_job({"tp": 8}, sequence_parallel=True))
    assert {(row.collective, row.phase): row.count for row in rows} == {
        ("all_gather", "forward"): 2,
        ("reduce_scatter", "forward"): 2,
        ("all_gather", "backward"): 4,
        ("reduce_scatter", "backward"): 2,
    }


@pytest.mark.parametrize(
    ("parallel", "train", "gigabytes"),
    [
        ({"tp": 8}, {}, 7.52),
        ({"tp": 8}, {"sequence_parallel": True}, 7.52),
        ({"cp": 8, "context": "ulysses"}, {}, 0.53),
        ({"cp": 8, "context": "ring"}, {}, 0.47),
    ],
)
def test_a_long_layer_forwards(parallel, train, gigabytes):
    sent = sent_bytes_of_layer(long_job(parallel, **train), phases=("forward",))
    assert round(sent / 1e9, 2) == gigabytes


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("parallel", [{"tp": 4}, {"cp": 4}, {"cp": 4, "context": "ulysses"}])
def test_a_model_is_its_layers_and_its_ends(parallel, recompute):
    """The ledger of 7 layers less that of 6 is one layer's."""

    def rows(layers):
        job = from_dict(
            {
                "model": {"preset": "gpt2-medium", "layers": layers, "vocab": 50304, "dropout": 0},
                "train": {"recompute": recompute, "global_batch": 2},
                "parallel": parallel,
            }
        )
        found = [m for m in messages(job) if m.axis in ("tp", "cp")]
        return {(m.axis, m.collective, m.phase, m.message_bytes): m.count for m in found}, job

    seven, job = rows(7)
    six, _ = rows(6)
    added = {key: count - six[key] for key, count in seven.items() if count != six[key]}
    one = {(m.axis, m.collective, m.phase, m.message_bytes): m.count for m in layer_messages(job)}
    assert {key: 2 * count for key, count in one.items()} == added  # two micro-batches


@pytest.mark.parametrize(
    ("heads", "kv_heads", "tp"), [(64, 8, 8), (64, 8, 16), (64, 8, 2), (12, 12, 4), (6, 1, 3)]
)
def test_every_query_finds_its_keys_on_its_own_rank(heads, kv_heads, tp):
    seen = []
    for rank in range(tp):
        queries, keys = rank_heads(heads, kv_heads, tp=tp, rank=rank)
        seen += queries
        assert {query // (heads // kv_heads) for query in queries} == set(keys)
    assert seen == list(range(heads))


@pytest.mark.parametrize("tp", [2, 8, 16, 64])
def test_heads_are_as_many_as_the_placement_says(tp):
    model = presets.model("llama3-70b")
    shapes = {spec.name: cut(spec, model=model, tp=tp).shape for spec in tensors(model)[:12]}
    queries, keys = rank_heads(model.heads, model.kv_heads, tp=tp, rank=tp - 1)
    assert shapes["layers.0.attn.q.weight"][0] == len(queries) * model.head_dim
    assert shapes["layers.0.attn.k.weight"][0] == len(keys) * model.head_dim


@pytest.mark.parametrize(
    ("heads", "kv_heads", "tp", "rank", "says"),
    [
        (40, 8, 16, 0, "40 query heads"),
        (12, 5, 4, 0, "not grouped"),
        (12, 6, 4, 0, "neither"),
        (8, 8, 2, 2, "0 to 1"),
    ],
)
def test_heads_that_cannot_be_dealt_out_are_refused(heads, kv_heads, tp, rank, says):
    with pytest.raises(ValueError, match=says):
        rank_heads(heads, kv_heads, tp=tp, rank=rank)


@pytest.mark.parametrize(("kv_heads", "ranks"), [(8, 2), (8, 8), (64, 4)])
def test_the_ring_hides_from_so_many_positions_on(kv_heads, ranks):
    """At the limit a layer's causal attention, less the rank's own part, takes as long as its messages."""
    rate, link = 156e12, 25e9
    model = presets.model("llama3-70b")
    least = ring_hides_from(replace(model, kv_heads=kv_heads), flops_per_s=rate, bytes_per_s=link)
    seq = round(least) * ranks
    job = from_dict({"model": {**LONG, "seq": seq, "kv_heads": kv_heads}, "parallel": {"cp": ranks}})
    attention = forward_per_token(job.model, conventions=Conventions(attention="causal")).attention
    computes_s = attention / job.model.layers * (seq / ranks) / rate
    sends_s = sent_bytes_of_layer(job, phases=("forward",)) / link
    assert computes_s * (ranks - 1) / ranks == pytest.approx(sends_s, rel=1e-3)
    assert round(ring_hides_from(model, flops_per_s=rate, bytes_per_s=link)) == 1560
