"""The article's section 3.1: the principle of tensor parallelism, and its code, operation by operation."""

from __future__ import annotations

from pdtlib.book.claims.judge import (
    ASSUMPTION,
    EXACT,
    IMPRECISE,
    WRONG,
    Finding,
    Reading,
    Register,
)
from pdtlib.plan import presets
from pdtlib.plan.comm import sent_bytes
from pdtlib.plan.params import tensors
from pdtlib.plan.placement import cut
from pdtlib.plan.units import percent_text

REGISTER = Register()
claim = REGISTER.claim

MEGATRON = "Megatron-LM (arXiv:1909.08053), section 3"
MEGATRON_CODE = "Megatron-LM, source of its tensor-parallel layers"
TORCH = "PyTorch, documentation of nn.Linear"
RUN = "run while this page was built"
LAB = "lab 03"
ROUNDING = 1e-12


@claim(
    "C3.1-a",
    says="Tensor parallelism splits the parameter matrix of one layer over several GPUs.",
    registered=EXACT,
    sources=(MEGATRON,),
)
def _principle() -> Finding:
    model = presets.model("llama2-70b")
    whole = [spec for spec in tensors(model) if ".0." in spec.name and len(spec.shape) == 2]
    parts = [cut(spec, model=model, tp=8) for spec in whole]
    return Finding(
        "Every matrix of a layer is cut, and what a rank computes with its part is a part of the layer. "
        "Norms stay whole on every rank.",
        [
            Reading(
                "in the plan each of 8 ranks has an eighth of every matrix of a layer",
                all(8 * part.numel == spec.numel for part, spec in zip(parts, whole, strict=True)),
            )
        ],
    )


@claim(
    "C3.1-b",
    says="The weight is split by columns.",
    registered=ASSUMPTION,
    sources=(MEGATRON_CODE, TORCH),
)
def _columns() -> Finding:
    from pdtlib.book.claims import tensor_snippet as snippet

    by_rows, by_columns = snippet.output_error(0), snippet.output_error(1)
    return Finding(
        "Columns of A in Y = XA, as Megatron-LM names them. PyTorch stores the transpose, [out, in], so "
        "in the stored tensor these are rows, dim 0. The article's code does cut dim 0; cut along dim 1, "
        "its shapes do not fit.",
        [
            Reading("columns of A in Y = XA", by_rows is not None and by_rows < ROUNDING),
            Reading("columns of the tensor that PyTorch stores", by_columns is not None),
        ],
    )


@claim(
    "C3.1-c",
    says="(Code.) A shard has out_features // n_gpus outputs.",
    registered=IMPRECISE,
    sources=(RUN, MEGATRON_CODE),
)
def _floor() -> Finding:
    from pdtlib.book.claims import tensor_snippet as snippet

    built = snippet.outputs_built(10, 4)
    return Finding(
        f"Ten outputs on four GPUs become {built}: the rest is dropped without a word. Check that the "
        "sizes divide, or pad.",
        [
            Reading("any sizes, as the code takes them", built == 10),
            Reading("sizes that divide", snippet.outputs_built(12, 4) == 12, usual=False),
        ],
    )


@claim(
    "C3.1-d",
    says="(Code.) The shard's weight has the shape (shard_size, in_features).",
    registered=EXACT,
    sources=(TORCH,),
)
def _shape() -> Finding:
    from pdtlib.book.claims import tensor_snippet as snippet

    shard, _ = snippet.part_shapes()
    return Finding(
        "PyTorch's linear layers store [out, in].",
        [
            Reading(
                f"{snippet.OUT} outputs of {snippet.IN} inputs on {snippet.RANKS} ranks",
                shard == (snippet.OUT // snippet.RANKS, snippet.IN),
            )
        ],
    )


@claim(
    "C3.1-e",
    says="(Code.) Each rank's weight is drawn with torch.randn and divided by the root of in_features.",
    registered=ASSUMPTION,
    sources=(RUN, MEGATRON_CODE, LAB),
)
def _initial() -> Finding:
    from pdtlib.book.claims import tensor_snippet as snippet

    own, alike = snippet.weight_ranks()
    article, default = snippet.initial_deviations()
    return Finding(
        "The scale keeps the variance. But if all ranks start from one seed, their shards are identical: "
        f"the gathered {snippet.OUT} × {snippet.IN} weight has rank {alike} instead of {own}. Each rank "
        "needs a stream of its own, or all draw the whole weight and keep their part, which also makes "
        "the model the one of a single GPU. (PyTorch's own default is smaller: a deviation of "
        f"{default:.3f} at 256 inputs, against {article:.3f}.)",
        [
            Reading("every rank draws other numbers", own == snippet.OUT),
            Reading("every rank starts from the same seed, as scripts do", alike == snippet.OUT),
        ],
    )


@claim(
    "C3.1-f",
    says="(Code.) In the forward pass each GPU computes its own part of the output.",
    registered=EXACT,
    sources=(RUN,),
)
def _local() -> Finding:
    from pdtlib.book.claims import tensor_snippet as snippet

    _, part = snippet.part_shapes()
    return Finding(
        "One product of the whole input with the rank's rows, and no message.",
        [Reading("batch × shard_size", part == (snippet.BATCH, snippet.OUT // snippet.RANKS))],
    )


@claim(
    "C3.1-g",
    says="(Code.) An all-gather along the last dimension gives the whole output.",
    registered=EXACT,
    sources=(RUN, LAB),
)
def _gathered() -> Finding:
    from pdtlib.book.claims import tensor_snippet as snippet

    error = snippet.output_error(0)
    return Finding(
        "The values are those of one GPU. torch.distributed's all_gather returns tensors without a "
        "gradient, so the gather has to be an autograd Function.",
        [Reading("values of the gathered output", error is not None and error < ROUNDING)],
    )


@claim(
    "C3.1-h",
    says="(Code.) The backward pass of the gather takes the rank's own slice of the output's gradient.",
    registered=ASSUMPTION,
    sources=(RUN, MEGATRON_CODE),
)
def _slice() -> Finding:
    from pdtlib.book.claims import tensor_snippet as snippet

    alike, different = snippet.slice_error(alike=True), snippet.slice_error(alike=False)
    return Finding(
        "Right while all ranks compute the same with the gathered output. Where they do different things "
        "with it, the backward pass of an all-gather is a reduce-scatter: the slice alone is off by "
        f"{percent_text(different, digits=0)}. Megatron-LM has both, under two names.",
        [
            Reading("all ranks do the same with the output", alike < ROUNDING),
            Reading("each rank goes on with a part of the work", different < ROUNDING),
        ],
    )


@claim(
    "C3.1-i",
    says="(Code.) The weight's gradient is the slice's transpose times the saved input.",
    registered=ASSUMPTION,
    sources=(RUN,),
)
def _weight_gradient() -> Finding:
    from pdtlib.book.claims import tensor_snippet as snippet

    return Finding(
        "Right for a batch of vectors. With a sequence dimension both must be flattened to matrices "
        "first. And the code never saves the input that it uses here.",
        [
            Reading("a batch of vectors", snippet.weight_gradient_error() < ROUNDING),
            Reading("sequences", not snippet.weight_gradient_of_sequences_fails()),
        ],
    )


@claim(
    "C3.1-j",
    says="(Code.) The input's gradient is the slice times the rank's shard.",
    registered=WRONG,
    sources=(RUN, MEGATRON, LAB),
)
def _input_gradient() -> Finding:
    from pdtlib.book.claims import tensor_snippet as snippet

    errors, summed = snippet.input_gradient_errors()
    return Finding(
        f"That is one of {snippet.RANKS} parts of a sum. Taken for the gradient it is off by "
        f"{percent_text(min(errors), digits=0)} to {percent_text(max(errors), digits=0)}, on every rank by "
        "another amount, so all layers below learn nonsense. After an all-reduce it is right. This is "
        "Megatron-LM's f: identity in the forward pass, all-reduce in the backward pass.",
        [Reading("the gradient on each rank", max(errors) < ROUNDING and summed < ROUNDING)],
    )


@claim(
    "C3.1-k",
    says="(Code.) The class works as it is printed.",
    registered=WRONG,
    sources=(RUN, "PyTorch, documentation of autograd.Function"),
)
def _works() -> Finding:
    from pdtlib.book.claims.snippet import module_backward_is_called

    return Finding(
        "It is no nn.Module, its rank, saved input, process group and gather are never defined, and "
        "autograd calls no method named backward. Two gradients returned from such a method reach nobody.",
        [Reading("its backward method is called", module_backward_is_called())],
    )


@claim(
    "C3.1-l",
    says="(Implied.) Tensor-parallel layers are column cuts, each followed by an all-gather.",
    registered=IMPRECISE,
    sources=(MEGATRON, LAB),
)
def _pairs() -> Finding:
    from pdtlib.book.claims import tensor_snippet as snippet

    ranks, block = 8, 1.0
    share = sent_bytes("all_gather", block, ranks)
    # h -> 4h -> h: the outputs are gathered, the gradients of the inputs all-reduced.
    everywhere = sent_bytes("all_gather", 4 * block + block, ranks) + sent_bytes(
        "all_reduce", block + 4 * block, ranks
    )
    paired = 2 * sent_bytes("all_reduce", block, ranks)
    error = snippet.output_error(0)
    return Finding(
        "Correct, and wasteful. Cut the second matrix by rows, and the first one's output can stay cut. "
        f"For an MLP of h, 4h, h a gather after every layer sends {everywhere / share:.0f} units, the pair "
        f"{paired / share:.0f} (a unit is (N−1)/N of a block of activations): {everywhere / paired:.2f} "
        "times less.",
        [
            Reading("as the way to do it", everywhere <= paired),
            Reading("as a way to the right values", error is not None and error < ROUNDING, usual=False),
        ],
    )
