"""The article's section 7.3: its communicator that overlaps a gather with computation."""

from __future__ import annotations

from pdtlib.book.claims.judge import ASSUMPTION, IMPRECISE, WRONG, Finding, Reading, Register
from pdtlib.plan.overlap import prefetch_timeline
from pdtlib.plan.units import percent_text

REGISTER = Register()
claim = REGISTER.claim

LAYERS, GATHER_S, COMPUTE_S = 8, 0.05, 0.05
RUN = "run while this page was built"
LAB = "lab 07"
FSDP = "PyTorch, documentation of FSDP2"


def end_s(depth: int, gather_s: float = GATHER_S) -> float:
    return prefetch_timeline([gather_s] * LAYERS, [COMPUTE_S] * LAYERS, depth=depth).end_s


def visible_s(gather_s: float) -> float:
    """What a pass waits for gathers, the first one's time with it, when the next layer is gathered ahead."""
    return end_s(1, gather_s) - LAYERS * COMPUTE_S


@claim(
    "C7.3-a",
    says="(Code.) Start the all-gather of the layer without blocking.",
    registered=ASSUMPTION,
    sources=("PyTorch, documentation of torch.distributed", RUN),
)
def _start() -> Finding:
    from pdtlib.book.claims import overlap_snippet as snippet

    return Finding(
        "A collective with async_op=True, or on a stream of its own, starts at once. A function written as "
        "async def does not: calling it makes a coroutine, and nothing happens until somebody awaits it.",
        [
            Reading("a collective with async_op=True", snippet.collectives_start_at_once()),
            Reading("a coroutine function, as the code is written", snippet.coroutine_starts_when_called()),
        ],
    )


@claim(
    "C7.3-b",
    says="(Code.) Meanwhile compute the layer before.",
    registered=WRONG,
    sources=(RUN, LAB, FSDP),
)
def _meanwhile() -> Finding:
    from pdtlib.book.claims import overlap_snippet as snippet

    beside = snippet.computed_while_gathering(snippet.printed_events())
    return Finding(
        "The layer's input is the output of the layer before, so that computation is over already. What the "
        f"code would compute instead is never set: {beside} computations ran beside a gather. To overlap, "
        f"gather the next layer. For 8 layers of 50 ms + 50 ms: {1000 * end_s(1):.0f} ms instead of "
        f"{1000 * end_s(0):.0f}.",
        [Reading("something is computed beside a gather", beside > 0)],
    )


@claim(
    "C7.3-c",
    says="(Code.) await waits for the gather.",
    registered=IMPRECISE,
    sources=("PyTorch, torch.distributed.Work", RUN),
)
def _await() -> Finding:
    from pdtlib.book.claims import overlap_snippet as snippet

    return Finding(
        "What torch returns for a collective cannot be awaited; it has wait() and get_future(). It can be "
        "wrapped. But while compute() blocks, an event loop does nothing else.",
        [
            Reading("torch's own object", snippet.work_is_awaitable()),
            Reading("wrapped into a thread", snippet.wrapped_work_is_awaitable(), usual=False),
        ],
    )


@claim(
    "C7.3-d",
    says="Overlap hides communication.",
    registered=ASSUMPTION,
    sources=("Li et al. (arXiv:2006.15704), section 3.2.3", FSDP),
)
def _hides() -> Finding:
    slow = 2 * COMPUTE_S
    visible = visible_s(slow)
    return Finding(
        "At best a pass takes the first gather and then, layer by layer, the longer of the two. Where "
        "gathering takes twice as long as computing, "
        f"{percent_text(visible / (LAYERS * slow), digits=0)} of it stays visible. And both "
        "use the same memory and the same GPU, so they slow each other down.",
        [
            Reading(
                "all but the first gather, where computing takes as long",
                abs(visible_s(GATHER_S) - GATHER_S) < 1e-9,
            ),
            Reading(
                "all but the first gather, where gathering takes twice as long", abs(visible - slow) < 1e-9
            ),
        ],
    )


@claim(
    "C7.3-e",
    says="(Omission.) What was gathered is never freed, and there is no backward pass.",
    registered=IMPRECISE,
    sources=(RUN, FSDP),
)
def _never_freed() -> Finding:
    from pdtlib.book.claims import snippet

    kept = snippet.share_kept_after_del()
    return Finding(
        f"Autograd keeps {percent_text(kept, digits=0)} of each gathered weight for the backward pass: after "
        "the forward pass the whole model is there. Two layers at a time are enough, the one at work and the "
        "next.",
        [
            Reading("as a layer that may be trained", kept == 0),
            Reading("as a forward pass", snippet.gathered_by_rows_is_right(), usual=False),
        ],
    )
