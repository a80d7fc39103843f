"""Compiled layers in every kind of layout train as they do without the compiler."""

import pytest
import torch
from test_parallelize import MODEL

from pdtlib.engine.compiled import compile_layers
from pdtlib.engine.dist import spawn
from pdtlib.engine.mesh import build_mesh
from pdtlib.engine.models import Layer
from pdtlib.engine.optimizer import ShardedAdamW
from pdtlib.engine.parallelize import parallelize
from pdtlib.engine.training.step import compute_gradients
from pdtlib.plan.job import from_dict

LAYOUTS = {
    "zero3, recomputed": ({"dp": 2}, {"zero_stage": 3, "recompute": "full"}),
    "tp, sp": ({"tp": 2}, {"sequence_parallel": True}),
    "cp": ({"cp": 2}, {}),
    "pp zb-v": ({"pp": 2, "schedule": "zb-v"}, {}),
    "ep": ({"dp": 2, "ep": 2}, {}),
}
BACKEND = "aot_eager"  # traces forward and backward as inductor does, and needs no C++ compiler


def run(name: str, compiler: str | None) -> tuple[list[float], int]:
    """Losses of two steps, and how many layers' arithmetic was replaced."""
    parallel, train = LAYOUTS[name]
    moe = {"ffn": 24, "moe": {"experts": 4, "top_k": 2, "ffn": 24}} if "ep" in parallel else {}
    train = {"global_batch": 4, "micro_batch": 1, "precision": "fp32", "seed": 1, **train}
    job = from_dict({"model": MODEL | moe, "train": train, "parallel": parallel})
    mesh = build_mesh(job.parallel)
    parts = parallelize(job, mesh, compiler=compiler)
    optimizer = ShardedAdamW(parts.replica, lr=3e-3)
    data = torch.randint(44, (4, 17), generator=torch.Generator().manual_seed(mesh.group("dp").rank))
    tokens, targets = parts.take(data[:, :-1]), parts.take(data[:, 1:])
    count = 4 // mesh.group("dp").size
    batch = list(zip(tokens[:count].split(1), targets[:count].split(1), strict=True))
    losses = []
    for step in range(2):
        optimizer.zero_grad()
        losses.append(compute_gradients(parts, optimizer, batch, step=step, max_norm=1.0).loss)
        optimizer.step()
    layers = [module for module in parts.replica.modules() if isinstance(module, Layer)]
    return losses, sum("_forward" in vars(layer) for layer in layers)


def both(names: list[str]) -> dict[str, tuple[list[float], list[float], int, int]]:
    """Every layout without the compiler and with it, on the ranks of one group."""
    found = {}
    for name in names:
        plain, none = run(name, None)
        compiled, count = run(name, BACKEND)
        found[name] = plain, compiled, none, count
    return found


@pytest.mark.timeout(900)
def test_compiled_layouts_train_alike() -> None:
    ranks = spawn(both, 2, list(LAYOUTS), timeout_s=600, group_timeout_s=300)
    for found in ranks:
        for name, (plain, compiled, none, count) in found.items():
            assert compiled == pytest.approx(plain, rel=1e-5), name
            assert plain[0] > plain[1], name
            assert (none, count) == (0, 2 if "pp" in LAYOUTS[name][0] else 4), name


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ValueError, match=r"backend='fast'; valid: .*inductor"):
        compile_layers(torch.nn.Linear(1, 1), backend="fast")
