"""Small awkward models in float64, and one training run of them: by one plain torch process, or by the
engine.

The models have tied, frozen, shared, odd-sized and unused parameters, parameters that only some ranks use,
blocks that run twice, activation checkpointing inside and around blocks, and buffers.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pdtlib.engine.data_parallel import data_parallel
from pdtlib.engine.data_parallel.replica import Replica
from pdtlib.engine.loss import TokenMean
from pdtlib.engine.mesh import Group
from pdtlib.engine.optimizer import ShardedAdamW

VOCAB, WIDTH, LENGTH = 11, 6, 5
BATCH, STEPS, MICRO_BATCHES, CLIP = 24, 3, 2, 0.5
LR, BETAS, EPS, DECAY = 1e-2, (0.9, 0.95), 1e-8, 0.1


class Block(nn.Module):
    """A residual MLP of odd sizes; ``rare`` is used only where a sequence contains token 0."""

    def __init__(self, *, frozen: bool = False, rare: bool = False, recompute: bool = False) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 7)
        self.down = nn.Linear(7, WIDTH, bias=False)
        self.rare = nn.Linear(WIDTH, WIDTH) if rare else None
        self.recompute = recompute
        self.register_buffer("strength", torch.tensor(0.7))
        if frozen:
            self.up.requires_grad_(False)

    def inner(self, x: Tensor) -> Tensor:
        return self.down(torch.tanh(self.up(self.norm(x)))) * self.strength

    def forward(self, x: Tensor, *, zeros: Tensor) -> Tensor:
        y = checkpoint(self.inner, x, use_reentrant=False) if self.recompute else self.inner(x)
        if self.rare is not None and zeros.any():
            y = y + self.rare(x) * zeros[:, None, None]
        return x + y


class Net(nn.Module):
    """Tokens [B, S] -> logits [B, S, V], with the output tied to the embedding."""

    def __init__(self, *, order: tuple[int, ...] = (0, 1, 2), outer: bool = False, **kinds: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(
            Block(**{kind: index == at for kind, at in kinds.items()}) for index in range(max(order) + 1)
        )
        self.unused = nn.Parameter(torch.full((3,), 0.3))
        self.gain = nn.Parameter(torch.ones(()))
        self.frozen = nn.Parameter(torch.full((2,), 0.5), requires_grad=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.head.weight = self.embed.weight
        self.order, self.outer = order, outer

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        zeros = (tokens == 0).any(dim=1)
        for index in self.order:
            layer = self.layers[index]
            if self.outer:
                x = checkpoint(layer, x, zeros=zeros, use_reentrant=False)
            else:
                x = layer(x, zeros=zeros)
        return self.head(self.norm(x) * self.gain * self.frozen.sum())


def shared_weight() -> nn.Module:
    """Two blocks share one matrix, so that it belongs to neither."""
    net = Net()
    net.layers[2].up.weight = net.layers[0].up.weight
    return net


def mixed() -> nn.Module:
    """A block that is partly frozen, one that is not always used, and one whose only parameter has one
    element."""
    net = Net(order=(0, 1, 2, 3), frozen=1, rare=0)
    net.layers[2] = _Scale()
    return net


class _Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((1,), 1.5))

    def forward(self, x: Tensor, *, zeros: Tensor) -> Tensor:
        return x * self.weight


class _Nested(Net):
    """The same blocks in lists and dicts that lie in a list and are never called themselves."""

    def __init__(self) -> None:
        super().__init__(order=(0, 1, 2, 3))
        first, second, third, fourth = self.layers
        self.layers = nn.ModuleList(
            [nn.ModuleList([first, second]), nn.ModuleDict({"a": third, "b": fourth})]
        )

    def forward(self, tokens: Tensor) -> Tensor:
        x, zeros = self.embed(tokens), (tokens == 0).any(dim=1)
        for layer in (*self.layers[0], *self.layers[1].values()):
            x = layer(x, zeros=zeros)
        return self.head(self.norm(x) * self.gain * self.frozen.sum())


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mixed": mixed,
    "twice": lambda: Net(order=(0, 1, 0, 2, 2), recompute=1),
    "around": lambda: Net(outer=True, rare=0),
    "shared": shared_weight,
    "nested": _Nested,
}


def build(name: str, *, seed: int = 0) -> nn.Module:
    """The model; another ``seed`` changes everything in it, parameters, frozen parameters and buffers."""
    torch.manual_seed(seed)
    model = MODELS[name]().double()
    with torch.no_grad():
        for tensor in (*model.buffers(), *(p for p in model.parameters() if not p.requires_grad)):
            tensor += 0.1 * seed
    return model


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Tokens and targets [BATCH, LENGTH]; how many targets are valid (not -1) differs widely by row."""
    generator = torch.Generator().manual_seed(1000 + step)
    tokens = torch.randint(VOCAB, (BATCH, LENGTH), generator=generator)
    targets = torch.randint(VOCAB, (BATCH, LENGTH), generator=generator)
    lengths = torch.randint(1, LENGTH + 1, (BATCH,), generator=generator)
    lengths[: BATCH // 2] = 1
    targets[torch.arange(LENGTH)[None, :] >= lengths[:, None]] = -1
    return tokens, targets


def loss_sum(logits: Tensor, targets: Tensor) -> Tensor:
    flat = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
    return F.cross_entropy(flat.flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="sum")


def groups(model: nn.Module) -> list[dict[str, Any]]:
    """Matrices decay, vectors do not and learn faster: groups that alternate within every buffer."""
    params = [param for param in model.parameters() if param.requires_grad]
    return [
        {"params": [param for param in params if param.dim() > 1]},
        {"params": [param for param in params if param.dim() <= 1], "weight_decay": 0.0, "lr": 2 * LR},
    ]


def clone(tensors: Any) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors}


def one_process(name: str) -> dict[str, Any]:
    """Train with torch alone. A parameter without a gradient has gradient zero."""
    model = build(name)
    optimizer = torch.optim.AdamW(groups(model), lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY)
    losses, norms = [], []
    for step in range(STEPS):
        tokens, targets = batch(step)
        loss = loss_sum(model(tokens), targets) / (targets != -1).sum()
        loss.backward()
        trainable = {n: param for n, param in model.named_parameters() if param.requires_grad}
        for param in trainable.values():
            if param.grad is None:
                param.grad = torch.zeros_like(param)
        grads = clone((n, param.grad) for n, param in trainable.items())
        norms.append(float(nn.utils.clip_grad_norm_(trainable.values(), CLIP)))
        losses.append(float(loss.detach()))
        optimizer.step()
        optimizer.zero_grad()
    states = {n: optimizer.state[param] for n, param in trainable.items()}
    return {
        "losses": losses,
        "norms": norms,
        "params": clone(model.named_parameters()),
        "grads": grads,
        "exp_avg": clone((n, state["exp_avg"]) for n, state in states.items()),
        "exp_avg_sq": clone((n, state["exp_avg_sq"]) for n, state in states.items()),
    }


def with_engine(name: str, group: Group, *, seed: int = 0, **options: Any) -> dict[str, Any]:
    """Train the same with the engine; ``options`` go to :func:`data_parallel`."""
    return train(data_parallel(build(name, seed=seed), group, **{"bucket_bytes": 1500, **options}))


def train(replica: Replica) -> dict[str, Any]:
    """The training run of :func:`one_process`, with a replica."""
    optimizer = ShardedAdamW(
        replica, groups=groups(replica.module), lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY
    )
    losses, norms, grads = [], [], {}
    for step in range(STEPS):
        losses.append(backward_passes(replica, optimizer, step))
        replica.finish_gradients()
        grads = replica.full_gradients()
        norms.append(optimizer.clip_grad_norm(CLIP))
        optimizer.step()
        optimizer.zero_grad()
    state = optimizer.full_state()
    return {
        "losses": losses,
        "norms": norms,
        "params": replica.full_parameters(),
        "grads": grads,
        "exp_avg": {n: tensors["exp_avg"] for n, tensors in state.items()},
        "exp_avg_sq": {n: tensors["exp_avg_sq"] for n, tensors in state.items()},
    }


def backward_passes(replica: Replica, optimizer: ShardedAdamW, step: int) -> float:
    """This rank's micro-batches of the step; returns the global mean loss."""
    tokens, targets = (part.chunk(replica.group.size)[replica.group.rank] for part in batch(step))
    mean = TokenMean(replica.group, num_valid=int((targets != -1).sum()))
    micro_batches = list(zip(tokens.chunk(MICRO_BATCHES), targets.chunk(MICRO_BATCHES), strict=True))
    total = torch.zeros((), dtype=torch.float64)
    for number, (inputs, wanted) in enumerate(micro_batches):
        last = number == len(micro_batches) - 1
        with contextlib.nullcontext() if last else replica.no_sync():
            loss = loss_sum(replica(inputs), wanted)
            optimizer.scale(mean.loss(loss)).backward()
        total += loss.detach()
    return mean.report(total)


def difference(found: dict[str, Any], expected: dict[str, Any]) -> dict[str, float]:
    """Largest absolute difference, per kind of result."""
    worst = {}
    for key, want in expected.items():
        if isinstance(want, list):
            worst[key] = max(abs(a - b) for a, b in zip(found[key], want, strict=True))
        else:
            assert found[key].keys() == want.keys(), f"{key}: {found[key].keys() ^ want.keys()}"
            worst[key] = max(float((found[key][name] - want[name]).abs().max()) for name in want)
    return worst
