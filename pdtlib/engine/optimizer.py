"""AdamW on whatever part of the model this rank owns."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.adamw import adamw

from pdtlib.engine.clip import grad_norm
from pdtlib.engine.data_parallel.flat import Flat
from pdtlib.engine.data_parallel.replica import Replica, assemble
from pdtlib.engine.mesh import Group
from pdtlib.engine.pending import Pending
from pdtlib.engine.precision import LossScale


@dataclass
class _Share:
    """The optimizer's states of one flat: both moments, shaped like ``flat.master``.

    ``pieces`` are the ranges of the shard that share one parameter group: (group, start, stop).
    """

    flat: Flat
    exp_avg: torch.Tensor
    exp_avg_sq: torch.Tensor
    pieces: list[tuple[int, int, int]]

    def tensors(self) -> dict[str, torch.Tensor]:
        return {"master": self.flat.master, "exp_avg": self.exp_avg, "exp_avg_sq": self.exp_avg_sq}


@dataclass(frozen=True)
class Shard:
    """What this rank owns of a trainable tensor: elements [start, stop) of it, flattened.

    ``shape`` is that of the parameter on this rank, ``group`` the ranks that share it out, or that all own it
    where ``shared_out`` is false. The states ``master``, ``exp_avg`` and ``exp_avg_sq`` are 1-D views that
    may be written.
    """

    name: str
    param: torch.nn.Parameter
    shape: torch.Size
    start: int
    stop: int
    states: dict[str, torch.Tensor]
    group: Group
    shared_out: bool


class ShardedAdamW:
    """AdamW (Loshchilov and Hutter 2019) on the shards of a
    :class:`pdtlib.engine.data_parallel.replica.Replica`.

    The arithmetic is torch's own fused AdamW, run on stretches of flat buffers instead of single parameters.
    ``groups`` is a list of mappings ``{"params": [...], "lr": ..., "weight_decay": ...}`` as torch's
    optimizers take it, with the module's own parameters; by default all trainable parameters form one group.
    Change a learning rate through ``param_groups[i]["lr"]``. Raises ValueError for a parameter that is in two
    groups or in none.
    """

    def __init__(
        self,
        replica: Replica,
        *,
        groups: Sequence[Mapping[str, Any]] | None = None,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        self.replica = replica
        self.num_steps = 0
        self.loss_scale = LossScale() if replica.dtype == torch.float16 else None
        self._norm: float | None = None
        self._factor = 1.0
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        trainable = [slot.param for flat in replica.trainable for slot in flat.slots]
        self.param_groups = [{**defaults, **group} for group in groups or [{"params": trainable}]]
        group_of = _group_of(self.param_groups, replica)
        self._shares = [
            _Share(
                flat, torch.zeros_like(flat.master), torch.zeros_like(flat.master), _pieces(flat, group_of)
            )
            for flat in replica.trainable
        ]

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss to call ``backward()`` on: multiplied by the loss scale in fp16, unchanged otherwise."""
        return loss if self.loss_scale is None else loss * self.loss_scale.value

    def clip_grad_norm(self, max_norm: float = math.inf) -> float:
        """Return the norm of the whole gradient; :meth:`step` then scales it down to ``max_norm``.

        Call it after ``replica.finish_gradients()``. Not finite when a gradient overflowed.
        """
        replica = self.replica
        norm = grad_norm(replica.trainable, replica.group, cut=replica.cut) / self._scale_value()
        self._norm = norm
        self._factor = min(1.0, max_norm / (norm + 1e-6))
        return norm

    def step(self) -> bool:
        """Update the parameters. In fp16, return False and change nothing when a gradient overflowed
        anywhere."""
        if self.loss_scale is not None:
            norm = self.clip_grad_norm() if self._norm is None else self._norm
            overflow = not math.isfinite(norm)
            factor = self._factor / self.loss_scale.value
            self.loss_scale.update(overflow=overflow)
            if overflow:
                return False
        else:
            factor = self._factor
        self.num_steps += 1
        pending = []
        for share in self._shares:
            self._update(share, factor)
            pending.append(self._publish(share.flat))
        _wait(pending)
        return True

    def _update(self, share: _Share, factor: float) -> None:
        flat = share.flat
        assert flat.grad_shard is not None, "call finish_gradients() before step()"
        grad = flat.grad_shard.to(flat.master.dtype)
        if factor != 1.0:
            grad.mul_(factor)
        for number, options in enumerate(self.param_groups):
            pieces = [slice(start, stop) for group, start, stop in share.pieces if group == number]
            if pieces:
                beta1, beta2 = options["betas"]
                adamw(
                    [flat.master[piece] for piece in pieces],
                    [grad[piece] for piece in pieces],
                    [share.exp_avg[piece] for piece in pieces],
                    [share.exp_avg_sq[piece] for piece in pieces],
                    [],
                    [torch.tensor(float(self.num_steps - 1), device=grad.device) for _ in pieces],
                    fused=True,
                    amsgrad=False,
                    beta1=beta1,
                    beta2=beta2,
                    lr=options["lr"],
                    weight_decay=options["weight_decay"],
                    eps=options["eps"],
                    maximize=False,
                )

    def _publish(self, flat: Flat) -> Pending | None:
        """Let the parameters follow the master weights, on every rank that holds them."""
        if flat.master is not flat.shard:
            flat.shard.copy_(flat.master)
        return self.replica.publish(flat)

    def zero_grad(self) -> None:
        """Forget the gradients, the norm and the clipping factor of this step."""
        self._norm, self._factor = None, 1.0
        self.replica.zero_grad()

    def _scale_value(self) -> float:
        return 1.0 if self.loss_scale is None else self.loss_scale.value

    def held(self) -> dict[str, list[torch.Tensor]]:
        """The tensors of the optimizer: moments, and master weights where they are not the parameters."""
        masters = [share.flat.master for share in self._shares if share.flat.master is not share.flat.shard]
        moments = [tensor for share in self._shares for tensor in (share.exp_avg, share.exp_avg_sq)]
        return {"optimizer": masters + moments}

    # --- checkpoints --------------------------------------------------------------------------------------

    def full_state(self) -> dict[str, dict[str, torch.Tensor]]:
        """Name -> {"master", "exp_avg", "exp_avg_sq"} as full tensors, on every rank."""
        state: dict[str, dict[str, torch.Tensor]] = {}
        for share in self._shares:
            for key, shard in share.tensors().items():
                for name, full in assemble(share.flat, shard).items():
                    state.setdefault(name, {})[key] = full
        return state

    def shards(self) -> list[Shard]:
        """What this rank owns of every trainable tensor; on stage 0 everything.

        A tensor of which this rank owns nothing is left out.
        """
        owned = []
        for share in self._shares:
            flat = share.flat
            for slot in flat.slots:
                first, last = max(slot.start, flat.start), min(slot.stop, flat.stop)
                if first < last:
                    part = slice(first - flat.start, last - flat.start)
                    states = {key: tensor[part] for key, tensor in share.tensors().items()}
                    start, stop = first - slot.start, last - slot.start
                    shared_out = flat.parts > 1
                    owned.append(
                        Shard(slot.name, slot.param, slot.shape, start, stop, states, flat.group, shared_out)
                    )
        return owned

    def scalars(self) -> dict[str, float]:
        """The numbers that belong to a checkpoint beside :meth:`shards`."""
        found: dict[str, float] = {"num_steps": self.num_steps}
        if self.loss_scale is not None:
            found |= {"loss_scale": self.loss_scale.value, "good_steps": self.loss_scale.good_steps}
        return found

    def load_scalars(self, scalars: Mapping[str, float]) -> None:
        """Take over what :meth:`scalars` returned."""
        self.num_steps = int(scalars["num_steps"])
        if self.loss_scale is not None:
            self.loss_scale.value = scalars["loss_scale"]
            self.loss_scale.good_steps = int(scalars["good_steps"])

    def load_finished(self) -> None:
        """Make the parameters follow masters that were written through :meth:`shards`."""
        _wait([self._publish(share.flat) for share in self._shares])


def _wait(pending: Sequence[Pending | None]) -> None:
    for gather in pending:
        if gather is not None:
            gather.wait()


def _group_of(param_groups: Sequence[Mapping[str, Any]], replica: Replica) -> dict[int, int]:
    """Parameter id -> number of its group."""
    found: dict[int, int] = {}
    for number, group in enumerate(param_groups):
        for param in group["params"]:
            if id(param) in found:
                raise ValueError(f"groups: a parameter of shape {tuple(param.shape)} is in two groups")
            found[id(param)] = number
    for flat in replica.trainable:
        for slot in flat.slots:
            if id(slot.param) not in found:
                raise ValueError(f"groups: parameter {slot.name} is in no group")
    return found


def _pieces(flat: Flat, group_of: Mapping[int, int]) -> list[tuple[int, int, int]]:
    """Cut this rank's shard where the parameter group changes; padding goes with what it follows."""
    pieces: list[tuple[int, int, int]] = []
    for slot in flat.slots:
        stop = flat.padded if slot is flat.slots[-1] else slot.stop
        group = group_of[id(slot.param)]
        first, last = max(slot.start, flat.start) - flat.start, min(stop, flat.stop) - flat.start
        if first >= last:
            continue
        if pieces and pieces[-1][0] == group:
            pieces[-1] = (group, pieces[-1][1], last)
        else:
            pieces.append((group, first, last))
    return pieces
