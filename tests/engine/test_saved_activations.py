"""What autograd saves in a whole model on a CPU is what the plan predicts, byte for byte, in every layout."""

import pytest
import torch

from pdtlib.engine.dist import spawn
from pdtlib.engine.loss import token_loss_sum
from pdtlib.engine.mesh import build_mesh
from pdtlib.engine.models import Transformer
from pdtlib.engine.parallelize import parallelize
from pdtlib.observe.memory import ActivationMeter
from pdtlib.plan.job import from_dict
from pdtlib.plan.memory import recomputed_layer_bytes, stage_memory
from pdtlib.plan.spec import Job

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
MODELS = {
    "llama": {"activation": "swiglu", "kv_heads": 2},
    "llama without groups": {"activation": "swiglu"},
    "llama with query and key norms": {"activation": "swiglu", "kv_heads": 2, "qk_norm": True},
    "gpt": {"activation": "gelu"},
    "experts": {"activation": "swiglu", "moe": {"experts": 4, "top_k": 2, "ffn": 40, "aux_loss": 0.1}},
    "experts, gpt": {"activation": "gelu", "moe": {"experts": 4, "top_k": 3, "ffn": 40}},
    "gpt with dropout": {"activation": "gelu", "dropout": 0.1},
}


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("flash", [True, False], ids=["fused", "explicit"])
@pytest.mark.parametrize("kind", MODELS)
def test_saved_bytes(kind, flash, precision):
    model = {"layers": 3, "hidden": 64, "heads": 4, "vocab": 100, "seq": 48, **MODELS[kind]}
    train = {"micro_batch": 2, "precision": precision, "flash_attention": flash}
    job = from_dict({"model": model, "train": train})
    predicted = stage_memory(job, 0)
    net = Transformer(job.model, flash_attention=flash).to(DTYPES[precision])
    tokens = torch.randint(100, (2, 48))
    with ActivationMeter(excluded=net.parameters()) as meter:
        loss = token_loss_sum(net(tokens), tokens.clone())
    assert meter.held_bytes == predicted.activations + predicted.logits
    loss.backward()


@pytest.mark.parametrize("layers", [None, 1, 2])
@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("kind", ["llama", "gpt", "experts"])
def test_saved_bytes_with_recomputation(kind, recompute, layers):
    """What is kept between the passes; the layer that is computed again comes on top of it later."""
    model = {"layers": 3, "hidden": 64, "heads": 4, "vocab": 100, "seq": 48, **MODELS[kind]}
    train = {"micro_batch": 2, "precision": "fp32", "flash_attention": False, "recompute": recompute}
    train |= {} if layers is None else {"recompute_layers": layers}
    job = from_dict({"model": model, "train": train})
    predicted = stage_memory(job, 0)
    again = recomputed_layer_bytes(job) if recompute == "full" else 0
    net = Transformer(job.model, flash_attention=False, recompute=recompute, recompute_layers=layers)
    tokens = torch.randint(100, (2, 48))
    with ActivationMeter(excluded=net.parameters()) as meter:
        loss = token_loss_sum(net(tokens), tokens.clone())
    assert meter.held_bytes == predicted.activations - again + predicted.logits
    loss.backward()


@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("layers", [1, 2, None])
def test_recomputed_layers_change_no_bit(recompute, layers):
    """Loss and gradients, with dropout: the second pass of a layer draws the masks of the first."""
    model = {"layers": 3, "hidden": 32, "heads": 4, "vocab": 50, "seq": 12, "dropout": 0.3}
    spec = from_dict({"model": model}).model
    tokens = torch.randint(50, (2, 12), generator=torch.Generator().manual_seed(3))
    found = []
    for kind in ("none", recompute):
        net = Transformer(spec, flash_attention=False, recompute=kind, recompute_layers=layers)
        torch.manual_seed(4)
        loss = token_loss_sum(net(tokens), tokens)
        loss.backward()
        found.append([loss.detach(), *(param.grad for param in net.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


LAYOUTS = [
    ({"dp": 2}, {}),
    ({"tp": 2}, {}),
    ({"tp": 2}, {"sequence_parallel": True}),
    ({"cp": 2}, {}),
    ({"cp": 2, "context": "ulysses"}, {}),
]


def layouts() -> list[Job]:
    """Both families in every layout, with every recomputation and both precisions."""
    found = []
    for parallel, train in LAYOUTS:
        for kind in ("llama with query and key norms", "gpt"):
            for recompute, precision in (("none", "bf16"), ("selective", "fp32"), ("full", "fp32")):
                model = {"layers": 2, "hidden": 64, "heads": 4, "vocab": 99, "seq": 48, **MODELS[kind]}
                batch = {"micro_batch": 2, "global_batch": 2 * parallel.get("dp", 1)}
                train = {**train, **batch, "recompute": recompute, "precision": precision}
                found.append(from_dict({"model": model, "train": train, "parallel": parallel}))
    return found


def saved_in_layouts() -> list[int]:
    found = []
    for job in layouts():
        parts = parallelize(job, build_mesh(job.parallel))
        tokens = torch.randint(99, (2, 49))
        inputs, targets = (parts.take(part).clone() for part in (tokens[:, :-1], tokens[:, 1:]))
        states = [flat.params.tensor for flat in parts.replica.flats]
        with ActivationMeter(excluded=[*parts.replica.parameters(), *states]) as meter:
            loss = parts.loss_sum(parts.replica(inputs), targets)
        found.append(meter.held_bytes)
        loss.backward()
    return found


def test_saved_bytes_in_every_layout() -> None:
    """Over dp, tp with and without SP, and cp of both kinds, a rank keeps what the plan says, exactly."""
    for counted in spawn(saved_in_layouts, 2, timeout_s=200):
        for job, held in zip(layouts(), counted, strict=True):
            predicted = stage_memory(job, 0)
            kept = predicted.activations - recomputed_layer_bytes(job) + predicted.logits
            assert held == kept, (job.parallel, job.train)
