"""What a framework is seen to hold: the memory model with that framework's accounting and overhead."""

from pdtlib.plan.memory import kept_for_backward
from pdtlib.plan.params import stages
from pdtlib.plan.spec import Job
from pdtlib.plan.states import ACCOUNTINGS, zero_state_bytes
from pdtlib.plan.time.constants import HABITS
from pdtlib.plan.time.held import held_layer, held_stage
from pdtlib.plan.time.stage import NO_ENDS, Ends


def footprint(job: Job, *, software: str, half: bool = False, fewer_at_ends: Ends = NO_ENDS) -> float:
    """Bytes on the fullest rank, as the framework or ``nvidia-smi`` reports them.

    States follow the framework's accounting; the loss keeps its 16-bit logits and their gradient besides
    the fp32 ones; the overhead is what the CUDA context, NCCL and the allocator take. ``half`` says that
    about half of each layer is recomputed, ``fewer_at_ends`` how many layers the first and last stage have
    fewer, so that another one is the fullest.
    """
    habits = HABITS[software]
    accounting = ACCOUNTINGS[habits.accounting]
    fullest = 0.0
    found = stages(job)
    if len(found) > 2:  # no stage between the second and the last holds more than the second
        found = (*found[:2], found[-1])
    if len(found) > 1:  # a lighter one is not the fullest
        found = found[fewer_at_ends[0] > 0 : len(found) - (fewer_at_ends[1] > 0)] or found
    for stage in found:
        states = sum(
            zero_state_bytes(params, dp=ranks, stage=job.train.zero_stage, accounting=accounting).total
            for params, ranks, _ in held_stage(job, stage).groups(job)
        )
        activations, logits = kept_for_backward(job, stage.index)
        kept = activations * habits.kept * (habits.kept_of_half if half else 1.0)
        loss = logits * habits.logits_factor
        gathered = 0.0
        if job.train.zero_stage == 3:  # two layers, whole, with their gradients in 16 and 32 bit
            gathered = 2 * held_layer(job).total * (2 + 4)
        fullest = max(fullest, states + kept + loss + gathered + habits.overhead_bytes)
    return fullest
