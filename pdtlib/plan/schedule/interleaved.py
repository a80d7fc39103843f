"""Interleaved 1F1B: each rank holds several chunks of the model, which divides the bubble by their number."""

from __future__ import annotations

from pdtlib.plan.schedule.actions import Act, Program


def interleaved(stages: int, microbatches: int, *, chunks: int) -> list[Program]:
    """Narayanan et al. 2021 (arXiv 2104.04473), section 2.2.2.

    Micro-batches go through in rounds of ``stages``: a rank takes a round through its chunk 0, then through
    chunk 1, and so on, before it starts the next round; backwards in the opposite order of chunks. Rank r
    warms up with 2 (stages - 1 - r) + (chunks - 1) stages forwards, so rank 0 holds 1 + (stages - 1) /
    (stages x chunks) times as much as under 1F1B.

    Where the last round is not full, its missing micro-batches are left out of the table of full rounds; what
    is left is legal, since no micro-batch waits for another one.
    """
    rounds = -(-microbatches // stages)
    full = rounds * stages * chunks  # forwards of a rank if every round were full

    def forward(k: int) -> Act:
        this_round, within = divmod(k, stages * chunks)
        chunk, along = divmod(within, stages)
        return Act("F", this_round * stages + along, chunk)

    def backward(k: int) -> Act:
        mirrored = forward(k)
        return Act("B", mirrored.micro_batch, chunks - 1 - mirrored.chunk)

    def program(rank: int) -> Program:
        warmup = min(2 * (stages - 1 - rank) + (chunks - 1) * stages, full)
        acts = [forward(k) for k in range(warmup)]
        for k in range(full - warmup):
            acts += [forward(warmup + k), backward(k)]
        acts += [backward(k) for k in range(full - warmup, full)]
        return tuple(act for act in acts if act.micro_batch < microbatches)

    return [program(rank) for rank in range(stages)]
