"""Parameter counts against those of released models, and the partition of layers over stages."""

from math import prod

import pytest

from pdtlib.plan import params, presets
from pdtlib.plan.job import Model, from_dict
from pdtlib.plan.placement import rank_tensors

# Sums of the tensors in the checkpoints that the authors released (tied tensors once).
RELEASED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3-405b": 405_853_388_800,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "mixtral-8x7b": 46_702_792_704,
}


@pytest.mark.parametrize(("name", "total"), RELEASED.items())
def test_counts_equal_the_released_checkpoints(name, total):
    assert params.count(presets.model(name)).total == total


def test_gated_mlp_has_three_matrices():
    """Field report: Qwen1.5-72B was counted as 56.18 B, with a two-matrix MLP."""
    model = Model(
        layers=80,
        hidden=8192,
        heads=64,
        ffn=24576,
        vocab=152064,
        seq=32768,
        activation="swiglu",
        norm="rmsnorm",
        biases="qkv",
    )
    assert params.count(model).total == 72_287_920_128


@pytest.mark.parametrize(("name", "billions"), [("gpt3-175b", 174.6), ("mt-nlg-530b", 529.6)])
def test_gpt_counts_equal_narayanans_formula(name, billions):
    """12 L h^2 (1 + 13 / (12 h) + (V + s) / (12 L h)), Narayanan 2021, eq. 2, which omits the final norm."""
    model = presets.model(name)
    h, layers = model.hidden, model.layers
    formula = 12 * layers * h**2 + 13 * layers * h + (model.vocab + model.seq) * h
    assert params.count(model).total == formula + 2 * h
    assert round(formula / 1e9, 1) == billions


def test_a_token_meets_two_of_mixtrals_eight_experts():
    count = params.count(presets.model("mixtral-8x7b"))
    assert count.total - count.active == 32 * 6 * 3 * 4096 * 14336
    assert round(count.active / 1e9, 1) == 12.9  # Jiang 2024, section 1: 13B active


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"activation": "swiglu"},
        {"biases": "qkv"},
        {"qk_norm": True},
        {"tied_embeddings": True},
        {"kv_heads": 2, "head_dim": 24},
        {"positions": "rotary"},
        {"activation": "swiglu", "moe": {"experts": 4, "top_k": 2, "ffn": 40}},
    ],
)
def test_the_count_is_the_sum_over_tensors_and_over_parts(change):
    data = {"layers": 3, "hidden": 64, "heads": 4, "vocab": 100, "seq": 16, **change}
    model = from_dict({"model": data}).model
    specs = params.tensors(model)
    count = params.count(model)
    assert count.total == sum(prod(spec.shape) for spec in specs) == sum(count.by_part.values())
    assert len({spec.name for spec in specs}) == len(specs)
    assert set(count.by_part) == {spec.part for spec in specs}


def test_names_and_shapes_of_a_small_llama():
    model = from_dict(
        {
            "model": {
                "layers": 1,
                "hidden": 8,
                "heads": 4,
                "kv_heads": 2,
                "ffn": 12,
                "vocab": 10,
                "seq": 4,
                "activation": "swiglu",
            }
        }
    ).model
    assert {spec.name: spec.shape for spec in params.tensors(model)} == {
        "embed.weight": (10, 8),
        "layers.0.attn_norm.weight": (8,),
        "layers.0.attn.q.weight": (8, 8),
        "layers.0.attn.k.weight": (4, 8),
        "layers.0.attn.v.weight": (4, 8),
        "layers.0.attn.o.weight": (8, 8),
        "layers.0.mlp_norm.weight": (8,),
        "layers.0.mlp.gate.weight": (12, 8),
        "layers.0.mlp.up.weight": (12, 8),
        "layers.0.mlp.down.weight": (8, 12),
        "norm.weight": (8,),
        "head.weight": (10, 8),
    }


@pytest.mark.parametrize("pp", [1, 2, 5])
@pytest.mark.parametrize("name", ["gpt2-medium", "llama3-8b"])
def test_stages_sum_to_the_model_plus_the_tied_copy(name, pp):
    job = from_dict({"model": {"preset": name}, "parallel": {"pp": pp}})
    stages = params.stages(job)
    total = params.count(job.model).total
    assert sum(stage.params - stage.tied_copy for stage in stages) == total
    assert (sum(stage.tied_copy for stage in stages) > 0) == (pp > 1 and job.model.tied_embeddings)
    for stage in stages:
        assert stage.params == sum(spec.numel for spec in rank_tensors(job, stage.index))


def test_tensor_parallel_ranks_hold_the_model_plus_what_is_repeated():
    """Llama 3 8B over 16 ranks repeats norms 16 times and each of the 8 KV heads twice."""
    job = from_dict({"model": {"preset": "llama3-8b"}, "parallel": {"tp": 16}})
    model = job.model
    norms = (2 * model.layers + 1) * model.hidden
    kv = model.layers * 2 * 8 * 128 * 4096
    held = 16 * sum(spec.numel for spec in rank_tensors(job, 0))
    assert held == params.count(model).total + 15 * norms + kv


def test_expert_parallel_ranks_share_out_the_experts():
    job = from_dict({"model": {"preset": "mixtral-8x7b"}, "parallel": {"dp": 4, "ep": 4}})
    by_part = params.count(job.model).by_part
    held = [spec for spec in rank_tensors(job, 0) if spec.part == "experts"]
    assert 4 * sum(spec.numel for spec in held) == by_part["experts"]
