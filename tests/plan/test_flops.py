"""FLOPs, training time and utilisation: published equations, the article's numbers put right."""

import pytest

from pdtlib.plan import flops, params, presets
from pdtlib.plan.job import Model, from_dict

A100 = 312e12
DAY = 86400


def gpt(layers, hidden, heads, vocab):
    return Model(layers=layers, hidden=hidden, heads=heads, vocab=vocab, seq=2048)


GPT_22B, GPT_530B = gpt(48, 6144, 64, 51200), gpt(105, 20480, 128, 51200)


@pytest.mark.parametrize("model", [GPT_22B, GPT_530B])
def test_korthikanti_equation_7(model):
    """72 B L s h^2 (1 + s/(6h) + V/(12hL)), per token."""
    s, h, layers, vocab = model.seq, model.hidden, model.layers, model.vocab
    expected = 72 * layers * h**2 * (1 + s / (6 * h) + vocab / (12 * h * layers))
    assert flops.model_flops_per_token(model) == pytest.approx(expected)


@pytest.mark.parametrize("model", [GPT_22B, GPT_530B])
def test_narayanan_equation_3(model):
    """96 B s L h^2 (1 + s/(6h) + V/(16Lh)), per token, with full recomputation."""
    s, h, layers, vocab = model.seq, model.hidden, model.layers, model.vocab
    expected = 96 * layers * h**2 * (1 + s / (6 * h) + vocab / (16 * layers * h))
    assert flops.hardware_flops_per_token(model, recompute="full") == pytest.approx(expected)


@pytest.mark.parametrize("model", [GPT_22B, GPT_530B])
def test_korthikanti_equation_8(model):
    """72 B L s h^2 (1 + s/(3h) + V/(12hL)), per token, with selective recomputation as printed."""
    s, h, layers, vocab = model.seq, model.hidden, model.layers, model.vocab
    expected = 72 * layers * h**2 * (1 + s / (3 * h) + vocab / (12 * h * layers))
    assert flops.korthikanti_hardware_flops_per_token(model) == pytest.approx(expected)


def test_selective_recomputation_runs_the_attention_core_once_more():
    once = flops.forward_per_token(GPT_22B).attention
    assert flops.hardware_flops_per_token(GPT_22B, recompute="selective") == pytest.approx(
        flops.model_flops_per_token(GPT_22B) + once
    )
    assert once == 4 * 48 * 2048 * 6144


# Iteration time, batch and GPUs -> printed MFU and HFU.
# Korthikanti 2022, Table 5; MegaScale (arXiv:2402.15627), Table 2.
PRINTED = [
    (GPT_22B, 4, 8, 1.10, 0.415, 0.437, 0.002),
    (GPT_530B, 280, 280, 37.83, 0.56, 0.57, 0.002),
    (gpt(96, 12288, 128, 64000), 768, 256, 40.0, 0.53, None, 0.003),
    (gpt(96, 12288, 128, 64000), 768, 1024, 11.9, 0.447, None, 0.003),
    (gpt(96, 12288, 128, 64000), 768, 256, 32.0, 0.653, None, 0.012),
    (gpt(96, 12288, 128, 64000), 6144, 3072, 29.02, 0.487, None, 0.003),
    (gpt(96, 12288, 128, 64000), 6144, 3072, 23.66, 0.591, None, 0.012),
]


@pytest.mark.parametrize(("model", "batch", "gpus", "seconds", "mfu", "hfu", "tolerance"), PRINTED)
def test_printed_mfu_follows_from_printed_times(model, batch, gpus, seconds, mfu, hfu, tolerance):
    tokens = batch * model.seq
    found = flops.mfu(
        tokens * flops.model_flops_per_token(model), seconds=seconds, num_gpus=gpus, peak_flops=A100
    )
    assert found == pytest.approx(mfu, abs=tolerance)
    if hfu is not None:
        executed = tokens * flops.korthikanti_hardware_flops_per_token(model)
        assert flops.mfu(executed, seconds=seconds, num_gpus=gpus, peak_flops=A100) == pytest.approx(
            hfu, abs=tolerance
        )


def test_6nd_of_the_articles_run():
    assert flops.training_flops(70e9, num_tokens=1e12) == 4.2e23
    assert flops.training_flops(100e9, num_tokens=1e12) == 6.0e23  # what the article prints, for 70B
    assert flops.training_flops(70e9, num_tokens=1e12, recompute=True) == 5.6e23


def test_days_of_the_articles_run():
    def days(mfu, gpus=2048):
        return flops.training_seconds(4.2e23, num_gpus=gpus, peak_flops=A100, mfu=mfu) / DAY

    assert round(days(1.0, gpus=1)) == 15_580
    assert round(days(0.43, gpus=1), -2) == 36_200
    assert [round(days(mfu), 1) for mfu in (1.0, 0.5, 0.45, 0.4)] == [7.6, 15.2, 16.9, 19.0]


def test_mfu_that_the_articles_deadline_needs():
    needed = flops.mfu_needed(4.2e23, seconds=11 * DAY, num_gpus=2048, peak_flops=A100)
    assert round(needed, 3) == 0.692
    as_printed = flops.mfu_needed(6.0e23, seconds=11 * DAY, num_gpus=2048, peak_flops=A100)
    assert as_printed == pytest.approx(0.988, abs=0.0005)
    gpus = [flops.gpus_needed(4.2e23, seconds=11 * DAY, peak_flops=A100, mfu=mfu) for mfu in (0.45, 0.4)]
    assert [round(count) for count in gpus] == [3148, 3541]


def test_attention_adds_to_6nd():
    """Llama 2 70B at 4,096: 7.8 % with the whole square, 3.9 % with its causal half."""
    model = presets.model("llama2-70b")
    base = flops.training_flops(params.count(model).total, num_tokens=1e12)
    shares = [flops.attention_flops(model, num_tokens=1e12, causal=causal) / base for causal in (False, True)]
    assert [round(100 * share, 1) for share in shares] == [7.8, 3.9]


def test_counted_by_torch():
    """As torch's FlopCounterMode counts 4 layers of 256, vocabulary 1,000, 128 positions: 6 N + 12 L h s."""
    model = Model(layers=4, hidden=256, heads=4, vocab=1000, seq=128, biases="none")
    assert flops.model_flops_per_token(model) == 21_983_232


def test_llama_forward():
    """Per token: L (4 h^2 (1 + kv/a) + 4 s h + 6 h f) + 2 h V."""
    model = presets.model("llama3-70b")
    expected = 80 * (4 * 8192**2 * (1 + 8 / 64) + 4 * 8192 * 8192 + 6 * 8192 * 28672) + 2 * 8192 * 128256
    assert flops.forward_per_token(model).total == expected


def test_only_the_experts_that_a_token_meets_cost():
    model = presets.model("mixtral-8x7b")
    forward = flops.forward_per_token(model, conventions=flops.Conventions(attention="none", logits=True))
    active = params.count(model).active
    not_multiplied = 32000 * 4096 + (2 * 32 + 1) * 4096  # input embedding and norms
    assert forward.total == 2 * (active - not_multiplied)


@pytest.mark.parametrize(("attention", "share"), [("full", 1.0), ("causal", 0.5), ("none", 0.0)])
def test_conventions_are_explicit(attention, share):
    model = presets.model("llama3-8b")
    found = flops.forward_per_token(model, conventions=flops.Conventions(attention=attention))
    assert found.attention == share * flops.forward_per_token(model).attention
    without = flops.forward_per_token(model, conventions=flops.Conventions(logits=False))
    assert without.logits == 0


def test_a_step_covers_the_global_batch():
    job = from_dict({"model": {"preset": "gpt2"}, "train": {"global_batch": 8}, "parallel": {"dp": 2}})
    assert flops.model_flops_per_step(job) == 8 * 1024 * flops.model_flops_per_token(job.model)
    assert flops.hardware_flops_per_step(job) == flops.model_flops_per_step(job)


@pytest.mark.parametrize(
    "call",
    [
        lambda: flops.Conventions(attention="half"),
        lambda: flops.training_seconds(1e20, num_gpus=8, peak_flops=A100, mfu=0),
        lambda: flops.training_seconds(1e20, num_gpus=8, peak_flops=A100, mfu=1.1),
        lambda: flops.training_seconds(1e20, num_gpus=0, peak_flops=A100),
    ],
)
def test_wrong_arguments_are_refused(call):
    with pytest.raises(ValueError, match="valid: "):
        call()


@pytest.mark.parametrize(
    ("mfu", "hfu", "parts"),
    [
        (0.5, 0.6, []),
        (0.8, None, ["above 75 %"]),
        (1.5, None, ["above 100 %"]),
        (0.5, 0.4, ["HFU below MFU"]),
        (2.0, 0.4, ["above 100 %", "HFU below MFU"]),
    ],
)
def test_impossible_utilisations_are_named(mfu, hfu, parts):
    found = flops.utilisation_warnings(mfu, hfu)
    assert len(found) == len(parts)
    assert all(part in text for part, text in zip(parts, found, strict=True))


def test_embeddings_are_what_six_n_d_counts_too_much():
    """6 N D with all parameters in N charges the lookup like a product; by name it is a convention."""
    model = presets.model("llama2-7b")
    counted = flops.Conventions(attention="none", embeddings=True)
    norms = params.count(model).by_part["norm"]
    six = flops.training_flops(params.count(model).total - norms, num_tokens=1)
    assert flops.model_flops_per_token(model, conventions=counted) == six
    usual = flops.Conventions(attention="none")
    lookup = 6 * model.vocab * model.hidden
    assert flops.model_flops_per_token(model, conventions=usual) == six - lookup


def test_peaks_are_dense_unless_someone_says_sparse():
    """A V100's and an A100's 16-bit peaks; sparse halves the utilisation; fp8 only where it exists."""
    assert flops.peak_flops("A100-SXM4-80") == 312e12
    assert flops.peak_flops("A100-SXM4-80", peak="sparse") == 624e12
    dense, sparse = (
        flops.mfu(1e18, seconds=10.0, num_gpus=1024, peak_flops=flops.peak_flops("H100-SXM5", peak=peak))
        for peak in flops.PEAKS
    )
    assert dense == 2 * sparse
    assert flops.peak_flops("H100-SXM5", precision="fp8") == 1978.9e12
    for wrong in (
        {"gpu": "H1000"},
        {"gpu": "H100-SXM5", "peak": "best"},
        {"gpu": "A100-SXM4-80", "precision": "fp8"},
    ):
        with pytest.raises(ValueError, match="valid"):
            flops.peak_flops(**wrong)
