"""Small models in float64, trained for three steps by one plain torch process, or by a pipeline."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from pdtlib.engine.dropout import DropoutSeeds
from pdtlib.engine.loss import token_loss_sum
from pdtlib.engine.mesh import Mesh, build_mesh
from pdtlib.engine.models import Transformer
from pdtlib.engine.optimizer import ShardedAdamW
from pdtlib.engine.pipeline import Pipeline, cut_layers
from pdtlib.plan.chunks import split_layers
from pdtlib.plan.schedule import FAMILIES, Layout
from pdtlib.plan.spec import Model, MoE

VOCAB, WIDTH, LENGTH, LAYERS, ROWS, STEPS = 11, 8, 6, 9, 2, 3
CLIP, ADAM = 0.05, {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
SIZES = {"layers": LAYERS, "hidden": WIDTH, "heads": 2, "vocab": VOCAB, "seq": LENGTH}
TRANSFORMERS = {
    "gpt": Model(**SIZES, activation="gelu", tied_embeddings=True, dropout=0.1),
    "llama": Model(**SIZES, activation="swiglu", kv_heads=1, ffn=12, qk_norm=True),
    "moe": Model(**SIZES, activation="gelu", ffn=7, moe=MoE(experts=3, top_k=2, ffn=7)),
}


@dataclass(frozen=True)
class Case:
    """A model, cut in ``dp`` times ``pp`` ways."""

    schedule: str
    model: str
    micro_batches: int
    pp: int
    dp: int = 1
    zero: int = 0
    chunks: int = 0
    reshard: bool = True

    @property
    def num_chunks(self) -> int:
        return self.chunks or FAMILIES[self.schedule].chunks or 2


class Block(nn.Module):
    """A user's own layer: a residual MLP with a norm, a gain outside any module, and a frozen matrix."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, width)
        self.frozen = nn.Linear(width, width, bias=False).requires_grad_(False)
        self.down = nn.Linear(width, WIDTH, bias=False)
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gain * self.down(self.frozen(torch.tanh(self.up(self.norm(x)))))


class Head(nn.Module):
    """Logits through the embedding's matrix, which it shares with the first layer."""

    def __init__(self, embed: nn.Embedding) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.proj = nn.Linear(WIDTH, VOCAB, bias=False)
        self.proj.weight = embed.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(self.norm(x))


def own_layers(seed: int = 0) -> list[nn.Module]:
    """A model that is nothing but a list of layers."""
    torch.manual_seed(seed)
    embed = nn.Embedding(VOCAB, WIDTH)
    blocks = [Block(5 + index % 3) for index in range(LAYERS - 2)]
    return [layer.double() for layer in (embed, *blocks, Head(embed))]


def data(step: int, number: int) -> tuple[Tensor, Tensor]:
    """Tokens and targets [ROWS, LENGTH] of micro-batch ``number`` of the global batch."""
    generator = torch.Generator().manual_seed(1000 * step + number)
    rows = torch.randint(VOCAB, (ROWS, LENGTH + 1), generator=generator)
    return rows[:, :-1], rows[:, 1:]


@cache
def one_process(model: str, micro_batches: int) -> dict[str, Any]:
    """Train with torch alone: losses, norms, and every parameter after the last step."""
    whole = own_layers() if model == "list" else Transformer(TRANSFORMERS[model], seed=3).double()
    whole = nn.Sequential(*whole) if isinstance(whole, list) else whole
    dropout = DropoutSeeds(whole, seed=7, first_micro_batch=0)
    params = {name: param for name, param in whole.named_parameters() if param.requires_grad}
    start = {name: param.detach().clone() for name, param in params.items()}
    optimizer = torch.optim.AdamW(params.values(), **ADAM)
    losses, norms = [], []
    for step in range(STEPS):
        total = 0.0
        for number in range(micro_batches):
            dropout.begin(step, number)
            tokens, targets = data(step, number)
            loss = token_loss_sum(whole(tokens), targets) / (targets.numel() * micro_batches)
            loss.backward()
            total += float(loss.detach())
        losses.append(total)
        norms.append(float(nn.utils.clip_grad_norm_(params.values(), CLIP)))
        optimizer.step()
        optimizer.zero_grad()
    params = {name: param.detach() for name, param in params.items()}
    moved = min(
        float((param - start[name]).abs().max())
        for name, param in params.items()
        if not name.endswith(".k.bias")  # softmax does not see it: its gradient is zero
    )
    return {"losses": losses, "norms": norms, "params": params, "moved": moved}


def build_parts(case: Case, rank: int, *, seed: int = 3) -> list[nn.Module]:
    layout = Layout(
        kind=FAMILIES[case.schedule].layout if case.pp > 1 else "loop",
        stages=case.pp,
        chunks=case.num_chunks,
    )
    if case.model == "list":
        sizes = [len(run) for run in split_layers(LAYERS, layout.length)]
        return cut_layers(own_layers(seed - 3), layout, rank, sizes=sizes[::-1])
    runs, last = split_layers(LAYERS, layout.length), layout.length - 1
    places = [layout.position(rank, chunk) for chunk in range(layout.chunks)]
    return [
        Transformer(
            TRANSFORMERS[case.model], layers=runs[at], first=at == 0, last=at == last, seed=seed
        ).double()
        for at in places
    ]


@cache
def mesh_of(dp: int, pp: int) -> Mesh:
    """One mesh for all cases of these degrees: process groups cost threads."""
    return build_mesh({"dp": dp, "pp": pp})


class Run:
    """One rank's training run of a case."""

    def __init__(self, case: Case) -> None:
        self.case = case
        mesh = mesh_of(case.dp, case.pp)
        self.dp, self.pp = mesh.group("dp"), mesh.group("pp")
        self.pp.ledger.clear()  # of the case before this one: they share the mesh
        # Other seeds on other replicas: training must start from the values of the first one.
        parts = build_parts(case, self.pp.rank, seed=3 + self.dp.rank)
        self.pipeline = Pipeline(parts, self.pp, schedule=case.schedule)
        self.replica = self.pipeline.data_parallel(
            self.dp, stage=case.zero, reshard_after_forward=case.reshard, bucket_bytes=3000
        )
        self.optimizer = ShardedAdamW(self.replica, **ADAM)
        self.dropout = DropoutSeeds(
            self.pipeline.module, seed=7, first_micro_batch=self.dp.rank * case.micro_batches
        )

    def step(self, step: int) -> tuple[float, float]:
        """This rank's part of the loss, and the norm of the whole gradient."""
        case = self.case
        first, count = self.dp.rank * case.micro_batches, case.micro_batches
        rows = [data(step, first + number) for number in range(count)]

        def loss(output: Tensor, index: int) -> Tensor:
            targets = rows[index][1]
            return token_loss_sum(output, targets) / (targets.numel() * count)

        self.pp.ledger.clear()
        total = self.pipeline.step(
            [tokens for tokens, _ in rows], loss=loss, begin=lambda index: self.dropout.begin(step, index)
        )
        self.pipeline.finish_gradients()
        norm = self.optimizer.clip_grad_norm(CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(total) / case.dp, norm

    def train(self) -> dict[str, Any]:
        """Losses (this rank's parts of them), norms, and this stage's parameters."""
        steps = [self.step(step) for step in range(STEPS)]
        losses, norms = zip(*steps, strict=True)
        return {"losses": losses, "norms": norms, "params": self.replica.full_parameters()}


def reference(case: Case) -> dict[str, Any]:
    """What the case must be equal to."""
    return one_process(case.model, case.micro_batches * case.dp)


def train(case: Case, expected: dict[str, Any]) -> dict[str, Any]:
    """The largest difference to one process: of this rank's norms and parameters; and its parts of losses."""
    found = Run(case).train()
    params = expected["params"]
    worst = max(abs(a - b) for a, b in zip(found["norms"], expected["norms"], strict=True))
    for name, param in found["params"].items():
        if name in params:
            worst = max(worst, float((param - params[name]).abs().max()))
    return {"worst": worst, "losses": found["losses"], "names": set(found["params"])}
