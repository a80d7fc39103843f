"""Activation memory: the list of tensors sums to the published closed forms, and to the article's numbers."""

import pytest

from pdtlib.plan import presets
from pdtlib.plan.activations import Setting, layer_bytes, layer_tensors, logits_bytes
from pdtlib.plan.job import Model, from_dict
from pdtlib.plan.memory import chunks_in_flight, stage_memory

GIB = 2**30
GPT_22B = Model(layers=48, hidden=6144, heads=64, vocab=51200, seq=2048, dropout=0.1)
GPT_175B = Model(layers=96, hidden=12288, heads=96, vocab=51200, seq=2048, dropout=0.1)
GPT_530B = Model(layers=105, hidden=20480, heads=128, vocab=51200, seq=2048, dropout=0.1)
LLAMA_70B = presets.model("llama3-70b")


@pytest.mark.parametrize("model", [GPT_22B, GPT_175B, GPT_530B])
@pytest.mark.parametrize("tp", [1, 2, 8])
@pytest.mark.parametrize("micro_batch", [1, 4])
def test_korthikanti_table_2(model, tp, micro_batch):
    """Korthikanti 2022 (arXiv:2205.05198), Table 2, all six rows."""
    s, b, h, a, t = model.seq, micro_batch, model.hidden, model.heads, tp
    unit, square = s * b * h, 5 * a * s / h

    def found(**setting):
        return layer_bytes(model, setting=Setting(seq=s, micro_batch=b, **setting))

    assert found() == pytest.approx(unit * (34 + square))
    assert found(tp=t) == pytest.approx(unit * (10 + 24 / t + square / t))
    assert found(tp=t, sequence_parallel=True) == pytest.approx(unit / t * (34 + square))
    assert found(tp=t, recompute="selective") == pytest.approx(unit * (10 + 24 / t))
    sharded = found(tp=t, sequence_parallel=True, recompute="selective")
    assert sharded == pytest.approx(34 * unit / t)
    assert found(tp=t, recompute="full") == 2 * unit


@pytest.mark.parametrize(
    ("setting", "gib"),
    [
        ({}, 485.0),
        ({"tp": 8, "sequence_parallel": True}, 60.6),
        ({"tp": 8, "sequence_parallel": True, "recompute": "selective"}, 10.6),
        ({"tp": 8, "recompute": "full"}, 5.0),
    ],
)
def test_the_articles_70b(setting, gib):
    model = presets.model("article-70b")
    assert round(model.layers * layer_bytes(model, setting=Setting(seq=4096, **setting)) / GIB, 1) == gib


def test_175b_with_and_without_sequence_parallelism():
    """Of one layer's 34 and 10 + 24/t terms over 96 layers with selective recomputation, t = 8."""
    per_layer = [
        layer_bytes(GPT_175B, setting=Setting(seq=2048, tp=8, recompute="selective", sequence_parallel=sp))
        for sp in (False, True)
    ]
    assert per_layer[0] / per_layer[1] == pytest.approx((10 + 24 / 8) / (34 / 8))


# Korthikanti 2022, figures 1 and 7, as coded in calculon-ai/calculon, calculon/llm/validation.py.
FIGURE_1 = [
    (GPT_22B, {"tp": 8}, {"global_batch": 4, "micro_batch": 4}, 59.25, 9.5625),
    (GPT_530B, {"tp": 8, "pp": 35, "vpp": 3}, {"global_batch": 280}, 114.0234375, 23.076171875),
]
FIGURE_7 = [(GPT_22B, 4, (66.84, 49.42, 16.18, 7.64)), (GPT_530B, 1, (58.31, 62.04, 20.27, 9.42))]


@pytest.mark.parametrize(("model", "parallel", "train", "tp_only", "sharded"), FIGURE_1)
def test_korthikanti_figure_1(model, parallel, train, tp_only, sharded):
    """Activations of the first stage: per layer, times the layers in flight, for both recipes; states too."""
    job = from_dict({"model": model_table(model), "parallel": parallel, "train": train})
    in_flight = chunks_in_flight(job, 0) * model.layers / (job.parallel.pp * job.parallel.vpp)
    base = {"seq": model.seq, "micro_batch": job.train.micro_batch, "tp": 8}
    plain = in_flight * layer_bytes(model, setting=Setting(**base))
    best = in_flight * layer_bytes(
        model, setting=Setting(**base, sequence_parallel=True, recompute="selective")
    )
    assert plain / GIB == pytest.approx(tp_only, rel=1e-4)
    assert best / GIB == pytest.approx(sharded, rel=1e-4)


def test_korthikanti_figure_1_states():
    """18 bytes for each of the 12 L h^2 weights of the layers, over tp x pp."""
    for model, ranks, gib in [(GPT_22B, 8, 45.5625), (GPT_530B, 280, 31.640625)]:
        assert 18 * 12 * model.layers * model.hidden**2 / ranks / GIB == pytest.approx(gib, rel=1e-4)


@pytest.mark.parametrize(("model", "micro_batch", "percents"), FIGURE_7)
def test_korthikanti_figure_7(model, micro_batch, percents):
    """Per cent of the tensor-parallel layer's activations, read off the figure to a few tenths."""

    def found(**setting):
        return layer_bytes(model, setting=Setting(seq=2048, micro_batch=micro_batch, tp=8, **setting))

    recipes = (
        found(sequence_parallel=True),
        found(recompute="selective"),
        found(sequence_parallel=True, recompute="selective"),
        found(recompute="full"),
    )
    assert [100 * recipe / found() for recipe in recipes] == pytest.approx(percents, abs=0.3)


def test_flash_attention_keeps_34_and_the_log_sum_exp():
    """It drops the squares, as selective recomputation does, and adds 4 b s a bytes."""
    flash = layer_bytes(GPT_22B, setting=Setting(seq=2048, flash_attention=True))
    assert flash == 34 * 2048 * 6144 + 4 * 2048 * 64


def test_without_dropout_masks_and_copies_vanish():
    """32 sbh + 2 a s^2 b, as counted on torch's saved tensors."""
    model = Model(layers=1, hidden=256, heads=8, vocab=64, seq=128)
    assert layer_bytes(model, setting=Setting(seq=128, micro_batch=2)) == (
        32 * 128 * 2 * 256 + 2 * 8 * 128**2 * 2
    )


@pytest.mark.parametrize(("fused", "mlp"), [(True, 6), (False, 8)])
def test_llama_layer(fused, mlp):
    """[s b h (12 + 4 kv/a) + 6 s b f + 4 s b a] / t with sequence parallelism; 8 s b f if silu is kept."""
    setting = Setting(seq=8192, tp=8, sequence_parallel=True, flash_attention=True, fused_swiglu=fused)
    s, h, f, a = 8192, 8192, 28672, 64
    expected = (s * h * (12 + 4 * 8 / 64) + mlp * s * f + 4 * s * a) / 8
    assert layer_bytes(LLAMA_70B, setting=setting) == pytest.approx(expected)
    if fused:
        assert (expected - 4 * s * a / 8) * 8 / (s * h) == pytest.approx(33.5)


def test_repeated_kv_heads_are_held_on_every_rank():
    names = {"k", "v"}
    for tp, heads in [(8, 1), (16, 1), (4, 2)]:
        kept = layer_tensors(LLAMA_70B, setting=Setting(seq=128, tp=tp, flash_attention=True))
        assert {tensor.bytes for tensor in kept if tensor.name in names} == {2 * 128 * heads * 128}


def test_context_parallelism_splits_positions():
    whole = layer_bytes(LLAMA_70B, setting=Setting(seq=8192, flash_attention=True))
    assert layer_bytes(LLAMA_70B, setting=Setting(seq=8192, cp=4, flash_attention=True)) == whole / 4


def test_every_token_is_kept_by_its_top_k_experts():
    model = presets.model("mixtral-8x7b")
    kept = {tensor.name: tensor.bytes for tensor in layer_tensors(model, setting=Setting(seq=100))}
    assert kept["down input"] == 2 * 100 * 2 * 14336
    assert kept["expert inputs"] == kept["expert outputs"] == 2 * 100 * 2 * 4096


def test_logits_are_charged_to_the_last_stage():
    """Field report: fp32 logits of 8,192 tokens on a vocabulary of 151,936 are 4.6 GiB."""
    assert logits_bytes(8192, vocab=151936) == 4_978_638_848
    assert round(logits_bytes(8192, vocab=151936, chunk=1024) / GIB, 2) == 0.58
    assert round(logits_bytes(8192, vocab=151936, tp=8) / GIB, 2) == 0.58
    job = from_dict({"model": {"preset": "qwen2.5-3b", "seq": 8192}, "parallel": {"pp": 4}})
    assert [stage_memory(job, stage).logits for stage in range(4)] == [0, 0, 0, 4_978_638_848]


def test_reasons_are_given_for_every_tensor():
    for model in (GPT_22B, LLAMA_70B, presets.model("mixtral-8x7b")):
        for recompute in ("none", "selective", "full"):
            kept = layer_tensors(model, setting=Setting(seq=64, recompute=recompute))
            assert all(tensor.why and tensor.bytes > 0 for tensor in kept)
            assert len({tensor.name for tensor in kept}) == len(kept)


def model_table(model):
    return {
        "layers": model.layers,
        "hidden": model.hidden,
        "heads": model.heads,
        "vocab": model.vocab,
        "seq": model.seq,
        "dropout": model.dropout,
    }
