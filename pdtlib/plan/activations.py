"""Activation memory of a Transformer layer, tensor by tensor.

The method is Korthikanti's (arXiv:2205.05198, section 4): list every tensor that the backward pass needs and
say over what it is split. His closed forms for a GPT layer with dropout in 16 bit are sums of this list:

=====================  ==========================
no parallelism         ``sbh (34 + 5 a s / h)``
tensor parallel        ``sbh (10 + 24/t + 5 a s / (h t))``
with sequence p.       ``sbh / t (34 + 5 a s / h)``
with selective too     ``34 sbh / t``
full recomputation     ``2 sbh``
=====================  ==========================

The list gives the other forms too: gated MLPs, grouped KV heads, flash attention, no dropout, experts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from pdtlib.plan.sharding import shard_numel
from pdtlib.plan.spec import Model


@dataclass(frozen=True)
class SavedTensor:
    """One tensor kept for the backward pass, on one rank.

    ``split`` says over what it is cut: ``"tensor"`` by tensor parallelism, ``"sequence"`` by sequence
    parallelism only (whole on every tensor-parallel rank without it), ``"none"`` by neither. ``why`` says who
    needs it.
    """

    name: str
    bytes: float
    split: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What the size of a layer's activations depends on, besides the model.

    ``element_bytes`` is that of the activations (2 in 16 bit), ``mask_bytes`` that of a dropout mask (1 on
    GPUs). ``fused_swiglu`` says that silu and product are one kernel, which keeps gate and up alone;
    separate ones also keep silu(gate). ``ulysses`` says that ``cp`` ranks exchange heads, not blocks.
    """

    micro_batch: int = 1
    seq: int
    tp: int = 1
    cp: int = 1
    sequence_parallel: bool = False
    recompute: str = "none"
    flash_attention: bool = False
    element_bytes: int = 2
    mask_bytes: int = 1
    fused_swiglu: bool = True
    ulysses: bool = False


def layer_tensors(model: Model, *, setting: Setting) -> tuple[SavedTensor, ...]:
    """Everything that one layer keeps for its backward pass, on one rank.

    With ``recompute="full"`` that is the layer's input alone; whole on every tensor-parallel rank, as in the
    paper, unless sequence parallelism has split it already. ``"selective"`` drops the attention core.

    >>> from pdtlib.plan import presets
    >>> model = presets.model("article-70b")
    >>> kept = layer_tensors(model, setting=Setting(seq=4096, tp=8, recompute="full"))
    >>> sum(tensor.bytes for tensor in kept) * model.layers / 2**30
    5.0
    """
    if setting.recompute == "full":
        whole = Sizes(model, setting)
        return (whole.tensor("layer input", whole.hidden, "sequence", "the layer runs again from it"),)
    return (*_attention(model, setting), *(_mlp if model.moe is None else _experts)(model, setting))


@lru_cache(maxsize=4096)
def layer_bytes(model: Model, *, setting: Setting) -> float:
    """Bytes of :func:`layer_tensors`.

    >>> from pdtlib.plan import presets
    >>> model = presets.model("article-70b")
    >>> bare = layer_bytes(model, setting=Setting(seq=4096))
    >>> split = layer_bytes(model, setting=Setting(seq=4096, tp=8, sequence_parallel=True))
    >>> bare * 80 / 2**30, split * 80 / 2**30
    (485.0, 60.625)
    """
    return sum(tensor.bytes for tensor in layer_tensors(model, setting=setting))


class Sizes:
    """Elements of the layer's tensors before tensor or sequence parallelism; context parallelism is in."""

    def __init__(self, model: Model, setting: Setting):
        self.setting = setting
        self.tokens = setting.micro_batch * setting.seq / setting.cp
        self.hidden = self.tokens * model.hidden
        self.query = self.tokens * model.heads * model.head_dim
        # More tensor-parallel ranks than KV heads: each rank repeats a head, so the group holds tp of them.
        self.key = self.tokens * max(model.kv_heads, setting.tp) * model.head_dim
        # Rows of the score matrix are this rank's queries, columns are all positions.
        self.scores = setting.micro_batch * model.heads * setting.seq / setting.cp * setting.seq
        self.rows = self.tokens * model.heads

    def tensor(self, name: str, elements: float, split: str, why: str, element_bytes: int = 0) -> SavedTensor:
        setting = self.setting
        ways = setting.tp if split == "tensor" or setting.sequence_parallel else 1
        return SavedTensor(name, elements * (element_bytes or setting.element_bytes) / ways, split, why)


def _attention(model: Model, setting: Setting) -> Iterator[SavedTensor]:
    size, dropout, mask = Sizes(model, setting), model.dropout > 0, setting.mask_bytes
    yield size.tensor("attn_norm input", size.hidden, "sequence", "the norm's gradient")
    yield size.tensor("q, k, v input", size.hidden, "sequence", "shared by the three products' gradients")
    yield size.tensor("q", size.query, "tensor", "the gradient of k in q k^T")
    yield size.tensor("k", size.key, "tensor", "the gradient of q in q k^T")
    yield size.tensor("v", size.key, "tensor", "the gradient of the weights in softmax(...) v")
    if setting.flash_attention:
        yield size.tensor("log-sum-exp", size.rows, "tensor", "softmax is computed again from it, fp32", 4)
    elif setting.recompute != "selective":
        yield size.tensor("softmax output", size.scores, "tensor", "the softmax's gradient")
        if dropout:
            yield size.tensor("softmax dropout mask", size.scores, "tensor", "the dropout's gradient", mask)
            yield size.tensor("softmax dropout output", size.scores, "tensor", "the gradient of v")
    yield size.tensor("o input", size.query, "tensor", "the output projection's gradient")
    if dropout:
        yield size.tensor("attention dropout mask", size.hidden, "sequence", "the dropout's gradient", mask)


def _mlp(model: Model, setting: Setting) -> Iterator[SavedTensor]:
    size = Sizes(model, setting)
    inner = size.tokens * model.ffn
    yield size.tensor("mlp_norm input", size.hidden, "sequence", "the norm's gradient")
    yield size.tensor("mlp input", size.hidden, "sequence", "the first products' gradients")
    yield from _inner(model, size, inner)
    if model.dropout > 0:
        yield size.tensor(
            "mlp dropout mask", size.hidden, "sequence", "the dropout's gradient", setting.mask_bytes
        )


def _inner(model: Model, size: Sizes, inner: float) -> Iterator[SavedTensor]:
    if model.activation == "gelu":
        yield size.tensor("gelu input", inner, "tensor", "the gelu's gradient")
    else:
        yield size.tensor("gate output", inner, "tensor", "the silu's gradient")
        yield size.tensor("up output", inner, "tensor", "the gradient of silu(gate)")
        if not size.setting.fused_swiglu:
            yield size.tensor("silu(gate)", inner, "tensor", "the gradient of up")
    yield size.tensor("down input", inner, "tensor", "the last product's gradient")


def _experts(model: Model, setting: Setting) -> Iterator[SavedTensor]:
    """A mixture of experts whose tokens are spread evenly: every token is copied to ``top_k`` experts."""
    assert model.moe is not None
    size = Sizes(model, setting)
    copies = size.tokens * model.moe.top_k
    yield size.tensor("mlp_norm input", size.hidden, "sequence", "the norm's gradient")
    yield size.tensor("router input", size.hidden, "sequence", "the router's gradient")
    yield size.tensor(
        "router probabilities", size.tokens * model.moe.experts, "sequence", "the softmax's gradient, fp32", 4
    )
    yield size.tensor("expert inputs", copies * model.hidden, "sequence", "the experts' first products")
    yield from _inner(model, size, copies * model.moe.ffn)
    yield size.tensor("expert outputs", copies * model.hidden, "sequence", "the gradient of their weights")
    if model.dropout > 0:
        yield size.tensor(
            "mlp dropout mask", size.hidden, "sequence", "the dropout's gradient", setting.mask_bytes
        )


def logits_bytes(tokens: float, *, vocab: int, tp: int = 1, chunk: int | None = None) -> float:
    """The fp32 logits that the loss needs, on the last stage; vocab-parallel over ``tp``, or by chunks.

    A rank's part of the vocabulary is padded to the others' size.

    >>> logits_bytes(8192, vocab=151936), round(logits_bytes(8192, vocab=151936, chunk=1024) / 2**30, 2)
    (4978638848.0, 0.58)
    """
    return 4.0 * min(tokens, chunk or tokens) * shard_numel(vocab, tp)
