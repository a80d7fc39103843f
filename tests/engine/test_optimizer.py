"""What a checkpoint needs of the optimizer: every element owned once, written back exactly."""

from typing import Any

import pytest
import torch
import zoo

from pdtlib.engine.data_parallel import data_parallel
from pdtlib.engine.dist import spawn
from pdtlib.engine.mesh import Group, build_mesh
from pdtlib.engine.optimizer import ShardedAdamW

Owned = list[tuple[str, tuple[int, ...], int, int, dict[str, torch.Tensor]]]


def trained(stage: int, precision: str | None, group: Group) -> tuple[Any, ShardedAdamW]:
    replica = data_parallel(zoo.build("mixed"), group, stage=stage, precision=precision, bucket_bytes=700)
    optimizer = ShardedAdamW(replica, groups=zoo.groups(replica.module))
    return replica, optimizer


def step(replica: Any, optimizer: ShardedAdamW, number: int) -> None:
    zoo.backward_passes(replica, optimizer, number)
    replica.finish_gradients()
    optimizer.clip_grad_norm(1.0)
    optimizer.step()
    optimizer.zero_grad()


def owned_and_restored() -> list[tuple[Owned, dict[str, dict[str, torch.Tensor]], bool]]:
    """Train, note everything, train on, write the notes back, train on again: the same must happen."""
    group = build_mesh().group("dp")
    found = []
    for stage in range(4):
        for precision in (None, "fp16"):
            replica, optimizer = trained(stage, precision, group)
            step(replica, optimizer, 0)
            notes = [
                (
                    one.name,
                    tuple(one.shape),
                    one.start,
                    one.stop,
                    {key: tensor.clone() for key, tensor in one.states.items()},
                )
                for one in optimizer.shards()
            ]
            scalars = optimizer.scalars()
            state = optimizer.full_state()
            step(replica, optimizer, 1)
            once = {**replica.full_parameters(), "steps": optimizer.num_steps}
            for one, (*_, kept) in zip(optimizer.shards(), notes, strict=True):
                for key, tensor in one.states.items():
                    tensor.copy_(kept[key])
            optimizer.load_scalars(scalars)
            optimizer.load_finished()
            step(replica, optimizer, 1)
            twice = {**replica.full_parameters(), "steps": optimizer.num_steps}
            same = all(
                torch.equal(value, twice[name]) if isinstance(value, torch.Tensor) else value == twice[name]
                for name, value in once.items()
            )
            found.append((notes, state, same))
    return found


@pytest.mark.parametrize("size", [2, 3])
def test_states_are_owned_once_and_restored(size: int) -> None:
    ranks = spawn(owned_and_restored, size, timeout_s=200)
    for number, of_ranks in enumerate(zip(*ranks, strict=True)):
        stage = number // 2
        assert all(same for _, _, same in of_ranks)
        full = of_ranks[0][1]
        seen = {name: torch.zeros(tensors["master"].numel()) for name, tensors in full.items()}
        for owned, _, _ in of_ranks if stage else of_ranks[:1]:
            for name, shape, start, stop, states in owned:
                assert shape == tuple(full[name]["master"].shape)
                seen[name][start:stop] += 1
                for key, tensor in states.items():
                    assert torch.equal(tensor, full[name][key].flatten()[start:stop])
        assert all(bool((count == 1).all()) for count in seen.values()), "each element once"


def test_learning_rates_may_change() -> None:
    """A rate of zero in one group freezes its parameters and no others."""
    replica, optimizer = trained(0, None, Group.alone())
    before = replica.full_parameters()
    optimizer.param_groups[0]["lr"] = 0.0
    step(replica, optimizer, 0)
    after = replica.full_parameters()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    trainable = {name: p for name, p in zoo.build("mixed").named_parameters() if p.requires_grad}
    assert changed == {name for name, param in trainable.items() if param.dim() <= 1} - {"unused"}


def test_no_clipping_below_the_limit() -> None:
    replica, optimizer = trained(0, None, Group.alone())
    zoo.backward_passes(replica, optimizer, 0)
    replica.finish_gradients()
    assert optimizer.clip_grad_norm(1e9) == pytest.approx(optimizer.clip_grad_norm())
    grads = replica.full_gradients()
    optimizer.step()
    assert all(torch.equal(grads[name], now) for name, now in replica.full_gradients().items())
