"""Zero-bubble schedules with one chunk a rank: the weight gradient fills the waits (Qi et al. 2023).

The backward is split: ``B`` computes the input's gradient, which the stage before waits for, and ``W`` the
weights', which nobody waits for.
"""

from __future__ import annotations

from pdtlib.plan.schedule.actions import Act, Program


def zb_h1(stages: int, microbatches: int) -> list[Program]:
    """The memory of 1F1B's first stage, ``stages`` activations, on every stage; a third of its bubble.

    Section 2.1.1 and table 1: (p-1)(T_F + T_B - T_W). A stage that starts s stages later falls behind with
    its weight gradients by s micro-batches, which is what lets its backwards go up early.
    """
    return [_program(microbatches, warmup=stages - s, owed=s) for s in range(stages)]


def zb_h2(stages: int, microbatches: int) -> list[Program]:
    """No bubble when T_F = T_B = T_W, for 2 x stages - 1 activations.

    Section 2.1.2 and table 1: (p-1)(T_F + T_B - 2 T_W). More forwards before the first backward fill the wait
    for it; the stages then end one after the other as they have begun (the paper's optimizer step needs no
    barrier).
    """
    return [_program(microbatches, warmup=2 * (stages - s) - 1, owed=2 * s) for s in range(stages)]


def _program(microbatches: int, *, warmup: int, owed: int) -> Program:
    """``warmup`` forwards, then B F pairs, where each B also pays the W of ``owed`` micro-batches ago."""
    warmup = min(warmup, microbatches)
    acts = [Act("F", i) for i in range(warmup)]
    for i in range(microbatches):
        acts.append(Act("B", i))
        if i >= owed:
            acts.append(Act("W", i - owed))
        if warmup + i < microbatches:
            acts.append(Act("F", warmup + i))
    return tuple(acts + [Act("W", i) for i in range(max(0, microbatches - owed), microbatches)])
