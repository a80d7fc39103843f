"""bf16 with fp32 master weights, fp32 gradients, and fp16 with a dynamic loss scale."""

from typing import Any

import pytest
import torch
from torch import nn

from pdtlib.engine.data_parallel import data_parallel
from pdtlib.engine.dist import spawn
from pdtlib.engine.mesh import Group, build_mesh
from pdtlib.engine.optimizer import ShardedAdamW
from pdtlib.engine.precision import LossScale

LR = 1e-2


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(9, 17), nn.Tanh(), nn.Linear(17, 17), nn.Linear(17, 3))


def inputs(step: int) -> torch.Tensor:
    return torch.randn(8, 9, generator=torch.Generator().manual_seed(step))


def run(stage: int, precision: str, grad_precision: str) -> dict[str, Any]:
    group = build_mesh().group("dp")
    replica = data_parallel(
        net(), group, stage=stage, precision=precision, grad_precision=grad_precision, bucket_bytes=400
    )
    optimizer = ShardedAdamW(replica, lr=LR, weight_decay=0.0)
    for step in range(3):
        for x in inputs(step).chunk(group.size)[group.rank].chunk(2):
            with replica.no_sync():
                optimizer.scale(replica(x).float().square().mean() / 2).backward()
        replica.finish_gradients()
        grads = replica.full_gradients()
        optimizer.clip_grad_norm(1.0)
        optimizer.step()
        optimizer.zero_grad()
    state = optimizer.full_state()
    return {
        "params": replica.full_parameters(),
        "grads": grads,
        **{key: {name: tensors[key] for name, tensors in state.items()} for key in ("master", "exp_avg")},
    }


def half_precision(precision: str) -> list[dict[str, Any]]:
    return [
        run(stage, precision, grad_precision) for stage in range(4) for grad_precision in ("same", "fp32")
    ]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_on_every_stage(precision: str) -> None:
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    ranks = spawn(half_precision, 2, precision)
    stages = ranks[0]
    for number, found in enumerate(stages):
        grad_dtype = torch.float32 if number % 2 else dtype
        for name, master in found["master"].items():
            assert found["params"][name].dtype == dtype
            assert found["grads"][name].dtype == grad_dtype
            assert master.dtype == found["exp_avg"][name].dtype == torch.float32
            assert torch.equal(found["params"][name], master.to(dtype)), "parameters follow the masters"
            assert torch.equal(master, ranks[1][number]["master"][name])
    # Masters start from the fp32 weights, not from their rounded copies: small updates are not lost.
    for name, param in net().named_parameters():
        drift = (stages[0]["master"][name] - param.detach()).abs().max()
        assert 0.5 * LR < float(drift) < 3.5 * LR
    # One step's rounding apart, the stages agree.
    for found in stages[1:]:
        for name, master in found["master"].items():
            assert torch.allclose(master, stages[0]["master"][name], atol=0.5 * LR)


def accumulated(grad_precision: str) -> torch.Tensor:
    """One large gradient and many small ones: bf16 forgets the small ones."""
    group = build_mesh().group("dp")
    found = []
    for stage in range(4):
        model = nn.Linear(4, 1, bias=False)
        replica = data_parallel(model, group, stage=stage, precision="bf16", grad_precision=grad_precision)
        for value in [256.0, *[0.5] * 16]:
            with replica.no_sync():
                replica(torch.full((1, 4), value)).sum().backward()
        replica.finish_gradients()
        found.append(replica.full_gradients()["weight"][0])
    return torch.stack(found)


def test_fp32_gradients_accumulate_exactly() -> None:
    assert spawn(accumulated, 2, "fp32")[0].unique().tolist() == [264.0]
    assert spawn(accumulated, 2, "same")[0].unique().tolist() == [256.0]


def overflow_on_one_rank() -> list[dict[str, Any]]:
    group = build_mesh().group("dp")
    found = []
    for stage in range(4):
        for clip in (True, False):
            replica = data_parallel(net(), group, stage=stage, precision="fp16", bucket_bytes=400)
            optimizer = ShardedAdamW(replica, lr=LR)
            before = replica.full_parameters()
            stepped = []
            for step, factor in enumerate((1.0, 1e6 if group.rank == 1 else 1.0, 1.0)):
                x = inputs(step)[: 4 + group.rank]
                optimizer.scale(replica(x).float().square().mean() * factor).backward()
                replica.finish_gradients()
                if clip:
                    optimizer.clip_grad_norm(1.0)
                stepped.append(optimizer.step())
                optimizer.zero_grad()
                if step == 0:
                    after_first = replica.full_parameters()
                if step == 1:
                    after_overflow = replica.full_parameters()
            assert optimizer.loss_scale is not None
            after = replica.full_parameters()
            found.append(
                {
                    "stepped": stepped,
                    "scale": optimizer.loss_scale.value,
                    "num_steps": optimizer.num_steps,
                    "moved": any(not torch.equal(before[name], after[name]) for name in after),
                    "unharmed": all(torch.equal(after_first[name], after_overflow[name]) for name in after),
                    "finite": all(bool(tensor.isfinite().all()) for tensor in after.values()),
                }
            )
    return found


def test_overflow_on_one_rank_skips_the_step_on_all() -> None:
    for rank in spawn(overflow_on_one_rank, 2):
        for found in rank:
            assert found == {
                "stepped": [True, False, True],
                "scale": 2.0**15,
                "num_steps": 2,
                "moved": True,
                "unharmed": True,
                "finite": True,
            }


def test_norm_and_moments_do_not_depend_on_the_loss_scale() -> None:
    """An update by Adam would hardly tell: a factor that all gradients have cancels in it."""
    norms, first_moments = [], []
    for precision in ("fp32", "fp16"):
        replica = data_parallel(net(), Group.alone(), precision=precision)
        optimizer = ShardedAdamW(replica)
        optimizer.scale(replica(inputs(0)).float().square().mean()).backward()
        replica.finish_gradients()
        norms.append(optimizer.clip_grad_norm(1.0))
        assert optimizer.step()
        states = optimizer.full_state()
        first_moments.append(torch.cat([states[name]["exp_avg"].flatten() for name in sorted(states)]))
    assert norms[0] == pytest.approx(norms[1], rel=2e-3)
    assert float(first_moments[0].norm()) == pytest.approx(float(first_moments[1].norm()), rel=2e-3)


def test_loss_scale_adapts() -> None:
    scale = LossScale(value=8.0, growth_interval=3)
    for overflow in (False, False, True, False, False, False, True):
        scale.update(overflow=overflow)
    assert scale.value == 4.0
    for _ in range(9):
        scale.update(overflow=True)
    assert scale.value == 1.0


def test_unknown_precisions() -> None:
    with pytest.raises(ValueError, match="precision='int8': valid are fp32, bf16, fp16"):
        data_parallel(net(), Group.alone(), precision="int8")
    with pytest.raises(ValueError, match="grad_precision='bf16': valid are same, fp32"):
        data_parallel(net(), Group.alone(), grad_precision="bf16")
