"""Bytes that tensor, context, pipeline and expert parallelism send: the numbers of the book's chapters."""

from collections import Counter

import pytest
from hypothesis import given, settings
from strategies import jobs

from pdtlib.plan.job import from_dict, replace
from pdtlib.plan.ledger import messages
from pdtlib.plan.params import tensors

GPT3 = {
    "model": {"preset": "gpt3-175b", "vocab": 51200},
    "train": {"global_batch": 1536, "precision": "bf16"},
    "parallel": {"dp": 16, "tp": 8, "pp": 8},
}


def sent(job, axis, phases=("forward", "backward"), stage=0, collectives=None):
    return sum(
        message.sent_bytes_per_rank
        for message in messages(job, stage)
        if message.axis == axis
        and message.phase in phases
        and (collectives is None or message.collective in collectives)
    )


def calls(job, axis, stage=0):
    found = Counter()
    for message in messages(job, stage):
        if message.axis == axis:
            found[message.collective, message.phase] += message.count
    return found


def test_tensor_parallelism_of_70b():
    """Four all-reduces a layer of 67.1 MB, 117.4 MB in a ring of eight: 37.6 GB a micro-batch."""
    job = from_dict({"model": {"preset": "llama2-70b"}, "parallel": {"tp": 8}})
    rows = [m for m in messages(job) if m.axis == "tp" and m.phase in ("forward", "backward")]
    assert {m.message_bytes for m in rows} == {2 * 4096 * 8192}
    assert round(rows[0].message_bytes / 1e6, 1) == 67.1
    assert round(rows[0].sent_bytes_per_rank / rows[0].count / 1e6, 1) == 117.4
    layers = 4 * 80
    assert sum(m.count for m in rows) == layers + 2  # the embedding and the head have one each
    assert round(layers * rows[0].sent_bytes_per_rank / rows[0].count / 1e9, 1) == 37.6


def test_3d_parallelism_of_gpt3():
    """On 8 x 8 x 16: 406 GB over tp in 4,608 all-reduces, 9.7 GB over pp in 192 sends, 10.3 GB over dp."""
    job = from_dict(GPT3)
    found = calls(job, "tp", stage=3)
    assert found["all_reduce", "forward"] + found["all_reduce", "backward"] == 4608
    assert round(sent(job, "tp", stage=3) / 1e9) == 406
    assert sum(calls(job, "pp", stage=3)[("send", phase)] for phase in ("forward", "backward")) == 192
    assert round(sent(job, "pp", stage=3) / 1e9, 1) == 9.7
    assert sent(job, "dp", ("grads",), stage=3) / 1e9 == pytest.approx(10.3, abs=0.2)
    split = replace(job, {"train.sequence_parallel": True})
    assert round(sent(split, "pp", stage=3) / 1e9, 1) == 1.2


def test_sequence_parallelism_sends_the_same_and_gathers_once_more():
    """All-gather and reduce-scatter for every all-reduce; the gathers of the weights' gradients on top."""
    job = from_dict(GPT3)
    split = replace(job, {"train.sequence_parallel": True})
    assert sent(split, "tp", ("forward",), 3) == sent(job, "tp", ("forward",), 3)
    assert sent(split, "tp", ("backward",), 3) == 1.5 * sent(job, "tp", ("backward",), 3)


def test_full_recomputation_sends_the_forward_pass_again():
    """12 b s h (t-1)/t elements a layer instead of 8 (Narayanan 2021, section 3.2); 10 if it stops early."""
    for dropout, share in ((0.1, 1), (0.0, 0.5)):
        job = from_dict({**GPT3, "model": {**GPT3["model"], "dropout": dropout}})
        again = replace(job, {"train.recompute": "full"})
        assert sent(again, "tp", ("recompute",), 3) == share * sent(job, "tp", ("forward",), 3)


@pytest.mark.parametrize(
    ("parallel", "sequence_parallel", "gigabytes"),
    [
        ({"tp": 8}, True, 7.52),
        ({"tp": 8}, False, 7.52),
        ({"cp": 8, "context": "ulysses"}, False, 0.53),
        ({"cp": 8, "context": "ring"}, False, 0.47),
    ],
)
def test_long_sequences_of_llama_3_70b(parallel, sequence_parallel, gigabytes):
    """GB that a rank of eight sends forwards in one layer at 131,072 positions."""
    job = from_dict(
        {
            "model": {"preset": "llama3-70b", "seq": 131072, "layers": 100},
            "train": {"sequence_parallel": sequence_parallel},
            "parallel": parallel,
        }
    )
    axis = "tp" if "tp" in parallel else "cp"
    assert sent(job, axis, ("forward",)) / 100 / 1e9 == pytest.approx(gigabytes, rel=0.015)


@pytest.mark.parametrize(("context", "gigabytes"), [("ulysses", 0.94), ("ring", 3.76)])
def test_grouped_heads_are_what_makes_ring_attention_cheap(context, gigabytes):
    job = from_dict(
        {
            "model": {"preset": "llama3-70b", "seq": 131072, "kv_heads": 64},
            "parallel": {"cp": 8, "context": context},
        }
    )
    assert round(sent(job, "cp", ("forward",)) / 80 / 1e9, 2) == gigabytes


def test_interleaving_multiplies_the_sends():
    """Boundaries crossed: 3 of four stages, 7 of eight chunks."""
    job = from_dict(
        {"model": {"preset": "gpt2", "layers": 8}, "train": {"global_batch": 8}, "parallel": {"pp": 4}}
    )
    for vpp, boundaries in ((1, 3), (2, 7)):
        spread = replace(job, {"parallel.vpp": vpp})
        forward = sum(calls(spread, "pp", stage)["send", "forward"] for stage in range(4))
        backward = sum(calls(spread, "pp", stage)["send", "backward"] for stage in range(4))
        assert forward == backward == 8 * boundaries


def test_tied_embeddings_are_reduced_between_the_ends():
    job = from_dict({"model": {"preset": "gpt2-medium"}, "parallel": {"pp": 3}})
    found = [calls(job, "pp", stage)["all_reduce", "embedding"] for stage in range(3)]
    assert found == [1, 0, 1]


def test_experts_exchange_top_k_copies():
    """Two all-to-alls a layer each way, of k b s h elements."""
    job = from_dict({"model": {"preset": "mixtral-8x7b"}, "parallel": {"dp": 8, "ep": 8}})
    rows = [m for m in messages(job) if m.axis == "ep"]
    assert {(m.phase, m.count, m.message_bytes) for m in rows} == {
        ("forward", 64, 2 * 4096 * 4096 * 2),
        ("backward", 64, 2 * 4096 * 4096 * 2),
        ("routing", 32, 8 * 8),  # how many tokens go to each expert
        ("grad_norm", 1, 8),
    }


@settings(max_examples=60, deadline=None)
@given(jobs())
def test_every_row_is_a_real_message(data):
    job = from_dict(data)
    degrees = {axis: getattr(job.parallel, axis) for axis in ("tp", "pp", "cp", "ep")}
    degrees["dp"] = job.parallel.dp * job.parallel.cp
    for stage in range(job.parallel.pp):
        for message in messages(job, stage):
            assert message.count > 0
            assert message.message_bytes > 0
            assert message.sent_bytes_per_rank > 0
            assert degrees[message.axis] > 1


@settings(max_examples=60, deadline=None)
@given(jobs())
def test_what_a_stage_sends_forwards_the_next_receives(data):
    """Over all stages, as many tensors go forwards as gradients come back."""
    job = from_dict(data)
    found = Counter()
    for stage in range(job.parallel.pp):
        found += calls(job, "pp", stage)
    assert found["send", "forward"] == found["send", "backward"]


LLAMA = {
    "layers": 4,
    "hidden": 64,
    "heads": 8,
    "kv_heads": 2,
    "ffn": 96,
    "vocab": 101,
    "seq": 32,
    "activation": "swiglu",
    "norm": "rmsnorm",
    "qk_norm": True,
}


def rows(data_rank=0, stage=0, axis="tp", **tables):
    job = from_dict({"model": LLAMA, **tables})
    return [m for m in messages(job, stage, data_rank) if m.axis == axis]


def test_partial_gradients_are_sent_by_shards():
    """With ZeRO each data rank completes over tp only what lies in its shard; together they complete all."""
    parallel, train = {"dp": 4, "tp": 2}, {"global_batch": 4, "sequence_parallel": True}

    def sizes(stage):
        found = [
            [m.message_bytes for m in rows(rank, train={**train, "zero_stage": stage}, parallel=parallel)
             if m.phase == "grads"]
            for rank in range(4)
        ]  # fmt: skip
        return [sum(each) for each in found]

    norms = 2 * (4 * (2 * 64 + 2 * 8) + 64)  # bf16: two norms and two of heads a layer, and the last
    assert sizes(0) == [norms] * 4
    for stage in (1, 2, 3):
        assert sum(sizes(stage)) == norms
        assert len(set(sizes(stage))) > 1


def test_repeated_kv_heads_complete_their_gradients_among_themselves():
    """Two KV heads on eight ranks: four hold the same one, and see a quarter of its queries each."""
    found = rows(parallel={"tp": 8}, train={"precision": "fp32"})
    grads = {m.group_size: m.message_bytes for m in found if m.phase == "grads"}
    assert grads == {8: 4 * 4 * 2 * 8, 4: 4 * 4 * 2 * (8 * 64)}


def test_stages_learn_the_loss():
    found = rows(axis="pp", parallel={"pp": 2}, stage=1)
    assert [(m.collective, m.phase, m.message_bytes) for m in found if m.collective != "send"] == [
        ("all_reduce", "loss", 8),
        ("all_reduce", "grad_norm", 8),
    ]


def test_a_tied_embedding_is_reduced_in_shards():
    model = {**LLAMA, "tied_embeddings": True}
    for stage, elements in ((0, 101 * 64), (1, 101 * 32), (3, 101 * 32)):
        parallel = {"dp": 2, "pp": 2}
        train = {"global_batch": 2, "zero_stage": stage, "precision": "fp32"}
        found = rows(axis="pp", model=model, parallel=parallel, train=train)
        assert [m.message_bytes for m in found if m.phase == "embedding"] == [4 * elements]


def test_dualpipe_sums_its_two_copies():
    """Every buffer of a rank has a double on its mirror, with the other half of the micro-batches."""
    parallel, train = {"pp": 2, "schedule": "dualpipe"}, {"global_batch": 4, "precision": "fp32"}
    found = rows(axis="pp", parallel=parallel, train=train)
    once = sum(spec.numel for spec in tensors(from_dict({"model": LLAMA}).model))
    assert sum(m.count * m.message_bytes for m in found if m.phase == "copies") == 4 * once
    assert {m.phase: m.count for m in found if m.collective == "send"} == {"forward": 2, "backward": 2}


@pytest.mark.parametrize(("reshard", "forward", "backward"), [(True, 6, 6), (False, 1, 0)])
def test_zero_3_in_a_pipeline_gathers_the_root_like_a_layer(reshard, forward, backward):
    train = {"global_batch": 12, "zero_stage": 3, "reshard_after_forward": reshard}
    parallel = {"dp": 2, "pp": 2}
    found = Counter()
    for m in rows(axis="dp", train=train, parallel=parallel):
        found[m.phase, m.message_bytes] += m.count
    root = 2 * 101 * 64
    assert found["forward", root] == forward
    assert found["backward", root] == backward
    assert found["grads", root] == 6


def test_zero_2_in_a_pipeline_reduces_what_passes():
    """DualPipe's copies get half of the micro-batches each."""
    for schedule, passes in (("1f1b", 6), ("zb-v", 6), ("dualpipe", 3)):
        parallel = {"dp": 2, "pp": 2, "schedule": schedule}
        found = rows(axis="dp", train={"global_batch": 12, "zero_stage": 2}, parallel=parallel)
        assert {m.count for m in found if m.phase == "grads"} == {passes}


def test_experts_under_tensor_parallelism():
    """Their input is gathered before routing: whole copies go out, and the gathered input is kept."""
    moe = {"experts": 4, "top_k": 2, "ffn": 32}
    model = {**LLAMA, "moe": moe, "ffn": 32}
    train = {"global_batch": 2, "sequence_parallel": True}
    parallel = {"dp": 2, "tp": 2, "ep": 2}
    block = 32 * 64 * 2
    sent = [m for m in rows(axis="ep", model=model, parallel=parallel, train=train) if m.phase == "forward"]
    assert [(m.count, m.message_bytes) for m in sent] == [(8, 2 * block)]
    gathers = [m for m in rows(model=model, parallel=parallel, train=train) if m.collective == "all_gather"]
    assert {m.phase: m.count for m in gathers} == {"forward": 2 * 4 + 1, "backward": 3 * 4 + 2}
    partial = [
        m for m in rows(model=model, parallel={"tp": 2}, train={"precision": "fp32"}) if m.phase == "grads"
    ]
    assert [m.message_bytes for m in partial] == [4 * 4 * (4 * 64 + 2 * 8)]
