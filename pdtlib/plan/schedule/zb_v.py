"""ZB-V: two chunks a rank, down the ranks and back up, no bubble within the memory of 1F1B."""

from __future__ import annotations

from pdtlib.plan.schedule.actions import Act, Program


def zb_v(stages: int, microbatches: int) -> list[Program]:
    """No bubble when T_F = T_B = T_W, and at most ``stages`` activations of a whole stage on every rank.

    Qi et al. 2023, section 6 and table 6; Qi et al. 2024 (arXiv 2405.15362). Since the last position lies on
    rank 0 again, its first backward follows the last forward at once, and every rank's warm-up is equally
    long.

    The table is made for at least 2 x stages - 1 micro-batches; with fewer, those that are missing are left
    out of it.
    """
    full = max(microbatches, 2 * stages - 1)

    def program(rank: int) -> Program:
        to_last = stages - rank
        acts: list[Act] = []
        next_one = {(op, chunk): 0 for op in "FBW" for chunk in (0, 1)}

        def add(ops: str, chunk: int) -> None:
            for op in ops:
                micro_batch = next_one[op, chunk]
                next_one[op, chunk] += 1
                if micro_batch < microbatches:
                    acts.append(Act(op, micro_batch, chunk))

        for _ in range(2 * to_last - 1):
            add("F", 0)
        for _ in range(rank):
            add("F", 1)
            add("F", 0)
        for _ in range(to_last):
            add("FBW", 1)
        while next_one["F", 1] < full:
            if next_one["F", 0] < full:
                add("F", 0)
            add("BW", 0)
            add("FBW", 1)
        for _ in range(rank):
            add("B", 0)
            add("B", 1)
        for _ in range(to_last):
            add("BW", 0)
        for chunk in (1, 0):
            while next_one["W", chunk] < full:
                add("W", chunk)
        return tuple(acts)

    return [program(rank) for rank in range(stages)]
