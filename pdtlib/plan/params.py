"""Every tensor of the model, by name and shape, and what follows: exact parameter counts.

Counting real shapes, instead of a formula such as 12 L h^2, is what keeps gated MLPs, grouped KV heads,
biases, tied embeddings and experts right. The engine's models have exactly these names and shapes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from pdtlib.plan.chunks import passed_chunks
from pdtlib.plan.spec import Job, Model, Parallel

PARTS = ("embedding", "positions", "attention", "mlp", "router", "experts", "norm", "head")


@dataclass(frozen=True)
class TensorSpec:
    """One parameter tensor. ``layer`` is None outside the blocks; ``part`` is one of :data:`PARTS`."""

    name: str
    shape: tuple[int, ...]
    part: str
    layer: int | None = None

    @property
    def numel(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class ParamCount:
    """Parameters of a model: all, those that one token meets, and by part (the parts sum to ``total``)."""

    total: int
    active: int
    by_part: dict[str, int]


@dataclass(frozen=True)
class Stage:
    """One pipeline stage: its layers and the parameters it keeps, over all its tensor-parallel ranks.

    ``tied_copy`` of those parameters are the last stage's copy of a tied embedding: held there, trained in
    step with the first stage, and not counted again in the model's total.
    """

    index: int
    layers: tuple[int, ...]
    params: int
    tied_copy: int = 0


def _norm(model: Model, name: str, size: int, part: str, layer: int | None) -> Iterator[TensorSpec]:
    yield TensorSpec(f"{name}.weight", (size,), part, layer)
    if model.norm == "layernorm":
        yield TensorSpec(f"{name}.bias", (size,), part, layer)


def _linear(
    name: str, out_size: int, in_size: int, part: str, layer: int | None, *, bias: bool
) -> Iterator[TensorSpec]:
    yield TensorSpec(f"{name}.weight", (out_size, in_size), part, layer)
    if bias:
        yield TensorSpec(f"{name}.bias", (out_size,), part, layer)


def _layer(model: Model, i: int) -> Iterator[TensorSpec]:
    """The tensors of block ``i`` in the order in which the forward pass meets them."""
    h, at = model.hidden, f"layers.{i}"
    q_size, kv_size = model.heads * model.head_dim, model.kv_heads * model.head_dim
    yield from _norm(model, f"{at}.attn_norm", h, "norm", i)
    for name, size in (("q", q_size), ("k", kv_size), ("v", kv_size)):
        yield from _linear(f"{at}.attn.{name}", size, h, "attention", i, bias=model.biases != "none")
    if model.qk_norm:
        yield TensorSpec(f"{at}.attn.q_norm.weight", (model.head_dim,), "attention", i)
        yield TensorSpec(f"{at}.attn.k_norm.weight", (model.head_dim,), "attention", i)
    yield from _linear(f"{at}.attn.o", h, q_size, "attention", i, bias=model.biases == "all")
    yield from _norm(model, f"{at}.mlp_norm", h, "norm", i)
    gate = ("gate",) if model.activation == "swiglu" else ()
    if model.moe is None:
        for name in (*gate, "up"):
            yield from _linear(f"{at}.mlp.{name}", model.ffn, h, "mlp", i, bias=model.biases == "all")
        yield from _linear(f"{at}.mlp.down", h, model.ffn, "mlp", i, bias=model.biases == "all")
        return
    yield TensorSpec(f"{at}.moe.router.weight", (model.moe.experts, h), "router", i)
    for j in range(model.moe.experts):
        for name in (*gate, "up"):
            yield TensorSpec(f"{at}.moe.experts.{j}.{name}.weight", (model.moe.ffn, h), "experts", i)
        yield TensorSpec(f"{at}.moe.experts.{j}.down.weight", (h, model.moe.ffn), "experts", i)


def tensors_before(model: Model) -> Iterator[TensorSpec]:
    """The tensors ahead of the blocks."""
    yield TensorSpec("embed.weight", (model.vocab, model.hidden), "embedding")
    if model.positions == "learned":
        yield TensorSpec("positions.weight", (model.seq, model.hidden), "positions")


def tensors_after(model: Model) -> Iterator[TensorSpec]:
    """The tensors behind the blocks."""
    yield from _norm(model, "norm", model.hidden, "norm", None)
    if not model.tied_embeddings:
        yield TensorSpec("head.weight", (model.vocab, model.hidden), "head")


def tensors(model: Model) -> tuple[TensorSpec, ...]:
    """Every parameter tensor in the order of the forward pass; a tied head has no tensor of its own."""
    blocks = (spec for i in range(model.layers) for spec in _layer(model, i))
    return (*tensors_before(model), *blocks, *tensors_after(model))


def layer_tensors(model: Model, layer: int = 0) -> tuple[TensorSpec, ...]:
    """The tensors of one block. Every block has the same shapes."""
    return tuple(_layer(model, layer))


@lru_cache(maxsize=256)
def layer_params(model: Model) -> int:
    """Parameters of one block (all blocks are alike)."""
    return sum(spec.numel for spec in _layer(model, 0))


@lru_cache(maxsize=256)
def count(model: Model) -> ParamCount:
    """Exact parameter count; ``active`` counts ``top_k`` of a layer's experts.

    >>> from pdtlib.plan import presets
    >>> count(presets.model("llama3-8b")).total
    8030261248
    >>> mixtral = count(presets.model("mixtral-8x7b"))
    >>> mixtral.total, mixtral.active
    (46702792704, 12879925248)
    """
    by_part = dict.fromkeys(PARTS, 0)
    for spec in (*tensors_before(model), *tensors_after(model)):
        by_part[spec.part] += spec.numel
    for spec in _layer(model, 0):
        by_part[spec.part] += spec.numel * model.layers
    total = sum(by_part.values())
    idle = 0
    if model.moe is not None:
        idle = by_part["experts"] * (model.moe.experts - model.moe.top_k) // model.moe.experts
    return ParamCount(total, total - idle, {part: n for part, n in by_part.items() if n})


def stages(job: Job) -> tuple[Stage, ...]:
    """Layers and parameters of every stage: embeddings on the first, final norm and head on the last.

    The layers are a complete, disjoint partition; the parameters, less tied copies, sum to the model's total.
    DualPipe's second copy of the model is not in it.
    """
    parallel = Parallel(pp=job.parallel.pp, vpp=job.parallel.vpp, schedule=job.parallel.schedule)
    return _stages(Job(model=job.model, parallel=parallel))


@lru_cache(maxsize=1024)
def _stages(job: Job) -> tuple[Stage, ...]:
    model = job.model
    before = sum(spec.numel for spec in tensors_before(model))
    after = sum(spec.numel for spec in tensors_after(model))
    tied_copy = model.vocab * model.hidden if model.tied_embeddings else 0
    found = []
    for index in range(job.parallel.pp):
        held = passed_chunks(job, index)
        first, ends = any(chunk.first for chunk in held), any(chunk.last for chunk in held)
        layers = tuple(layer for chunk in held for layer in chunk.layers)
        copy = tied_copy if ends and not first else 0
        params = len(layers) * layer_params(model) + before * first + after * ends + copy
        found.append(Stage(index, layers, params, copy))
    return tuple(found)
