"""What torch's own CPU kernels keep for the backward pass of our models, tensor by tensor.

The papers' lists (:mod:`pdtlib.plan.activations`) suppose the fused kernels of a GPU. On a CPU a gated MLP
keeps silu(gate) too, an RMSNorm its input and its normalised output in fp32, a norm its statistics, a dropout
mask has the precision of the activations, and grouped heads are spread before explicit attention. Fused
attention with dropout is not fused there: it writes the score matrices out in fp32. A mixture of experts
keeps what :mod:`pdtlib.engine.models.moe` computes with, indices included, for tokens that are spread evenly.
Counted with torch 2.13.
"""

from collections.abc import Iterator
from dataclasses import replace

from pdtlib.plan.activations import SavedTensor, Setting, Sizes
from pdtlib.plan.spec import Model


def cpu_layer_tensors(model: Model, *, setting: Setting) -> tuple[SavedTensor, ...]:
    """Everything that one layer keeps for its backward pass on a CPU, on one rank.

    >>> from pdtlib.plan.spec import Model
    >>> model = Model(layers=1, hidden=64, heads=4, kv_heads=2, vocab=100, seq=48, activation="swiglu")
    >>> setting = Setting(seq=48, micro_batch=2, flash_attention=True, element_bytes=2)
    >>> sum(tensor.bytes for tensor in cpu_layer_tensors(model, setting=setting)) / 96  # a token
    3864.0
    """
    sizes = Sizes(model, replace(setting, mask_bytes=setting.element_bytes))
    if setting.recompute == "full":
        return (sizes.tensor("layer input", sizes.hidden, "sequence", "the layer runs again from it"),)
    return (
        *_norm("attn_norm", model, sizes),
        sizes.tensor("q, k, v input", sizes.hidden, "sequence", "shared by the three products' gradients"),
        *_core(model, sizes),
        sizes.tensor("o input", sizes.query, "tensor", "the output projection's gradient"),
        *_mask("attention dropout mask", model, sizes),
        *_norm("mlp_norm", model, sizes),
        *(_mlp if model.moe is None else _experts)(model, sizes),
        *_mask("mlp dropout mask", model, sizes),
    )


def cpu_outside_bytes(model: Model, *, setting: Setting, first: bool, last: bool) -> float:
    """Bytes kept once for a micro-batch outside the layers, without the loss's logits.

    The first stage keeps the tokens, positions and rotary tables (whose casts every stage makes), which of
    the tokens are in its rows of a cut embedding, and the embedding's dropout mask; the last the final norm,
    the head's input and :func:`cpu_loss_tensors`.
    """
    sizes = Sizes(model, replace(setting, mask_bytes=setting.element_bytes))
    kept = 0.0
    if first:
        kept += (8 + (setting.tp > 1)) * sizes.tokens
        # Ulysses' positions are a view of all of them.
        numbers = setting.seq / (1 if setting.ulysses else setting.cp)
        kept += 8 * numbers if model.positions == "learned" else 0.0
        kept += sum(tensor.bytes for tensor in _mask("embedding dropout mask", model, sizes))
    if model.positions == "rotary" and setting.recompute != "full":
        kept += setting.seq / setting.cp * model.head_dim * setting.element_bytes
    if last:
        kept += sum(tensor.bytes for tensor in _norm("norm", model, sizes))
        kept += sizes.tensor("head input", sizes.hidden, "sequence", "the head's gradient").bytes
        kept += sum(tensor.bytes for tensor in cpu_loss_tensors(setting=setting))
    return kept


def cpu_loss_tensors(*, setting: Setting) -> tuple[SavedTensor, ...]:
    """What the cross-entropy keeps besides fp32 logits: whole, or cut along the vocabulary.

    >>> [(tensor.name, tensor.bytes) for tensor in cpu_loss_tensors(setting=Setting(seq=100, micro_batch=2))]
    [('targets', 1600.0)]
    """
    tokens = setting.micro_batch * setting.seq / setting.cp
    if setting.tp == 1:
        return (SavedTensor("targets", 8 * tokens, "whole", "which logit gains, an int64 a token"),)
    return (
        SavedTensor("target columns", 8 * tokens, "whole", "which of its logits gains, an int64 a token"),
        SavedTensor("target masks", 2 * tokens, "whole", "whether there is a target, and here, a byte each"),
    )


def _norm(name: str, model: Model, sizes: Sizes) -> Iterator[SavedTensor]:
    if model.norm == "rmsnorm":
        yield sizes.tensor(f"{name} input", sizes.hidden, "sequence", "the norm's gradient, in fp32", 4)
        yield sizes.tensor(
            f"{name} normalised", sizes.hidden, "sequence", "its weight's gradient, in fp32", 4
        )
        yield sizes.tensor(f"{name} statistics", sizes.tokens, "sequence", "one a token, in fp32", 4)
    else:
        yield sizes.tensor(f"{name} input", sizes.hidden, "sequence", "the norm's gradient")
        yield sizes.tensor(f"{name} statistics", 2 * sizes.tokens, "sequence", "mean and deviation a token")


def _mask(name: str, model: Model, sizes: Sizes) -> Iterator[SavedTensor]:
    if model.dropout > 0:
        yield sizes.tensor(name, sizes.hidden, "sequence", "the dropout's gradient", sizes.setting.mask_bytes)


def _core(model: Model, sizes: Sizes) -> Iterator[SavedTensor]:
    """Attention between the projections: fused, explicit, or computed again."""
    setting, dropout = sizes.setting, model.dropout > 0
    if model.qk_norm:
        heads = (("q_norm", sizes.query, sizes.rows), ("k_norm", sizes.key, sizes.key / model.head_dim))
        for name, elements, rows in heads:
            yield sizes.tensor(f"{name} input", elements, "tensor", "the norm's gradient, in fp32", 4)
            yield sizes.tensor(f"{name} normalised", elements, "tensor", "its weight's gradient, fp32", 4)
            yield sizes.tensor(f"{name} statistics", rows, "tensor", "one a head and token, in fp32", 4)
    grouped = model.kv_heads != model.heads
    if setting.recompute == "selective":
        yield sizes.tensor("q", sizes.query, "tensor", "the core runs again from it")
        yield sizes.tensor("k", sizes.key, "tensor", "the core runs again from it")
        yield sizes.tensor("v", sizes.key, "tensor", "the core runs again from it")
        return
    fused = setting.flash_attention and not dropout
    wide = 4 if setting.flash_attention and dropout else setting.element_bytes
    key = sizes.key if fused else sizes.query  # explicit products spread grouped heads first
    yield sizes.tensor("q", sizes.query, "tensor", "the gradient of k in q k^T", wide)
    yield sizes.tensor("k", key, "tensor", "the gradient of q in q k^T", wide)
    yield sizes.tensor("v", key, "tensor", "the gradient of the weights in softmax(...) v", wide)
    if fused:
        yield sizes.tensor("log-sum-exp", sizes.rows, "tensor", "softmax is computed again from it, fp32", 4)
        own_heads = model.heads // (setting.tp * (setting.cp if setting.ulysses else 1))
        if own_heads > 1 and (grouped or model.positions == "rotary" or setting.ulysses):
            # The kernel's layout is heads first then, and the output projection reads a copy. Of one head
            # both layouts are the same.
            yield sizes.tensor("attention output", sizes.query, "tensor", "the kernel's own gradient")
        return
    yield sizes.tensor("softmax output", sizes.scores, "tensor", "the softmax's gradient", wide)
    if dropout:
        yield sizes.tensor("softmax dropout mask", sizes.scores, "tensor", "the dropout's gradient", wide)
        yield sizes.tensor("softmax dropout output", sizes.scores, "tensor", "the gradient of v", wide)
    if not setting.flash_attention:
        square = setting.seq**2 / setting.cp
        yield SavedTensor("causal mask", square, "sequence", "the masked scores' gradient, a byte each")


def _mlp(model: Model, sizes: Sizes) -> Iterator[SavedTensor]:
    yield sizes.tensor("mlp input", sizes.hidden, "sequence", "the first products' gradients")
    yield from _inner(model, sizes, sizes.tokens * model.ffn)


def _inner(model: Model, sizes: Sizes, inner: float) -> Iterator[SavedTensor]:
    if model.activation == "gelu":
        yield sizes.tensor("gelu input", inner, "tensor", "the gelu's gradient")
    else:
        yield sizes.tensor("gate output", inner, "tensor", "the silu's gradient")
        yield sizes.tensor("silu(gate)", inner, "tensor", "the gradient of up")
        yield sizes.tensor("up output", inner, "tensor", "the gradient of silu(gate)")
    yield sizes.tensor("down input", inner, "tensor", "the last product's gradient")


def _experts(model: Model, sizes: Sizes) -> Iterator[SavedTensor]:
    """Router and experts, which every tensor-parallel rank feeds with all tokens."""
    assert model.moe is not None
    moe, width, tokens = model.moe, sizes.setting.element_bytes, sizes.tokens
    copies = tokens * moe.top_k

    def whole(name: str, elements: float, element_bytes: int, why: str) -> SavedTensor:
        return SavedTensor(name, elements * element_bytes, "none", why)

    yield whole("router input", sizes.hidden, width, "the router's gradient")
    yield whole("router probabilities", tokens * moe.experts, 4, "the softmax's gradient, fp32")
    yield whole("chosen experts", copies, 8, "the gradient of their probabilities")
    yield whole("chosen probabilities", copies, 4, "the gradient of their sum, fp32")
    yield whole("sums of the chosen", tokens, 4, "the gradient of their shares, fp32")
    if moe.aux_loss:
        yield whole("shares of the experts", moe.experts, 4, "the balancing loss's gradient, fp32")
    yield whole("tokens of the copies", copies, 8, "the gradients go back to them")
    yield whole("expert inputs", copies * model.hidden, width, "the experts' first products")
    yield from _inner(model, sizes, copies * moe.ffn)
    yield whole("order of the copies", copies, 8, "the gradient of their weights")
    yield whole("weights of the copies", copies, width, "the gradient of the experts' outputs")
    yield whole("expert outputs", copies * model.hidden, width, "the gradient of their weights")
