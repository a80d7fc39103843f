"""The code in the article's section 2.3: what each operation of its ZeRO-3 layer does when it is run."""

from __future__ import annotations

from pdtlib.book.claims.judge import ASSUMPTION, IMPRECISE, WRONG, Finding, Reading, Register, near
from pdtlib.book.claims.section1 import PARAMS
from pdtlib.plan.comm import zero_messages
from pdtlib.plan.units import percent_text

REGISTER = Register()
claim = REGISTER.claim

AUTOGRAD = "PyTorch, documentation of autograd.Function"
RUN = "run while this page was built"


@claim(
    "C2.3-k",
    says="(Code.) The layer gathers its weight shard and applies a linear function to the gathered weight.",
    registered=ASSUMPTION,
    sources=(RUN,),
)
def _snippet_forward() -> Finding:
    from pdtlib.book.claims import snippet

    return Finding(
        "The value is right if shards are rows of the [out, in] weight, or pieces of a flat vector that is "
        "given its shape back. The sketch has no constructor, no bias and no process group.",
        [
            Reading("shards are rows", snippet.gathered_by_rows_is_right()),
            Reading("shards are columns", snippet.gathered_by_columns_is_right()),
        ],
    )


@claim(
    "C2.3-l",
    says="(Code.) Deleting the gathered weight at the end of the forward pass frees it at once.",
    registered=WRONG,
    sources=(RUN, AUTOGRAD),
)
def _snippet_del() -> Finding:
    from pdtlib.book.claims import snippet

    kept = snippet.share_kept_after_del()
    return Finding(
        "The linear function saves the weight for its backward pass. After the deletion autograd still "
        f"holds {percent_text(kept, digits=0)} of its bytes, and so with every layer: the whole model. A "
        "real ZeRO-3 saves the shard alone, or empties the storage and fills it again.",
        [Reading("bytes of the gathered weight after the deletion: none", kept == 0)],
    )


@claim(
    "C2.3-m",
    says="(Code.) The backward method gathers the layer's parameters again.",
    registered=ASSUMPTION,
    sources=(RUN, AUTOGRAD),
)
def _snippet_backward() -> Finding:
    from pdtlib.book.claims import snippet

    phases = [message.phase for message in zero_messages(PARAMS, dp=8, stage=3)]
    return Finding(
        "Right as an algorithm. As code it never runs: autograd does not call a method named backward of a "
        "module. It has to be an autograd.Function, or hooks.",
        [
            Reading("as an algorithm", "backward" in phases),
            Reading("as a method of a module", snippet.module_backward_is_called()),
        ],
    )


@claim(
    "C2.3-n",
    says="(Code.) The gradient of the input is the output's gradient times the transposed weight.",
    registered=WRONG,
    sources=(RUN,),
)
def _snippet_grad_input() -> Finding:
    from pdtlib.book.claims import snippet

    seen = snippet.grad_input()
    return Finding(
        "The weight is [out, in], so it is the gradient times the weight as it is. Transposed, it raises "
        "an error when the sizes differ. When they are equal it runs and is wrong: off by up to "
        f"{seen.error_if_square:.1f} where the right gradient is at most {seen.size_if_square:.1f}.",
        [
            Reading("different sizes", not seen.fails_if_rectangular),
            Reading("equal sizes", near(1 + seen.error_if_square, 1, within=1e-9)),
        ],
    )


@claim(
    "C2.3-o",
    says="(Code.) The weight's gradient is the output's transposed gradient times the saved input.",
    registered=IMPRECISE,
    sources=(RUN,),
)
def _snippet_grad_weight() -> Finding:
    from pdtlib.book.claims import snippet

    return Finding(
        "Right for a batch of vectors whose input somebody has saved. For [batch, sequence, features] it "
        "raises an error until both are flattened to matrices, and the sketch never saves the input.",
        [
            Reading("sequences, as in a Transformer", not snippet.grad_weight_of_sequences_fails()),
            Reading("a batch of vectors", snippet.grad_weight_of_matrices_is_right(), usual=False),
        ],
    )


@claim(
    "C2.3-p",
    says="(Code.) A reduce-scatter of the ranks' gradients gives the gradient.",
    registered=WRONG,
    sources=(RUN, "lab 02"),
)
def _snippet_reduce() -> Finding:
    from pdtlib.book.claims import snippet

    ratio = snippet.summed_over_mean()
    return Finding(
        "A reduce-scatter adds. When each of 4 ranks has the gradient of its mean loss, the sum is "
        f"{ratio:.1f} times the gradient of the global mean. Divide by the number of ranks.",
        [Reading("ranks hold gradients of mean losses", near(ratio, 1, within=1e-9))],
    )


@claim(
    "C2.3-q",
    says="(Code.) The reduced gradient is assigned to the shard's gradient.",
    registered=IMPRECISE,
    sources=(RUN,),
)
def _snippet_assign() -> Finding:
    from pdtlib.book.claims import snippet

    one, four = snippet.share_left_by_assignment(1), snippet.share_left_by_assignment(4)
    return Finding(
        f"An assignment forgets earlier micro-batches: of four, {percent_text(four, digits=0)} remains. It "
        "must add, and real systems add into an fp32 shard.",
        [
            Reading("with gradient accumulation, as large runs train", four == 1),
            Reading("one micro-batch a step", one == 1, usual=False),
        ],
    )
