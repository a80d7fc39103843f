"""The article's section 9: asynchronous and elastic training."""

from __future__ import annotations

from pdtlib.book.claims.judge import ASSUMPTION, EXACT, IMPRECISE, Finding, Reading, Register, prints_as
from pdtlib.plan.job import from_dict
from pdtlib.plan.reliability import (
    FLEETS,
    Updates,
    checkpoint_bytes,
    expected_wall_time,
    goodput,
    implicit_momentum,
    largest_stable_step,
    simulate_workers,
    stable_step,
)
from pdtlib.plan.units import DAY_S, GB, HOUR_S, percent_text

REGISTER = Register()
claim = REGISTER.claim

CHEN = "Chen et al. 2016 (arXiv:1604.00981)"
HOGWILD = "Recht et al. 2011 (arXiv:1106.5730)"
DISTBELIEF = "Dean et al. 2012 (DistBelief)"
MITLIAGKAS = "Mitliagkas et al. 2016 (arXiv:1605.09774)"
HO = "Ho et al. 2013 (stale-synchronous parallel)"
DILOCO = "Douillard et al. 2023 (DiLoCo, arXiv:2311.08105)"
LLAMA3 = "Llama 3 (arXiv:2407.21783), section 3.3.4"
TORCHRUN = "torch.distributed.run, its section on changes of membership"
TORCHFT = "torchft, README"
LAB = "lab 09"

WORKERS, SLOWER = 8, 4.0
TIMES = [1.0] * (WORKERS - 1) + [SLOWER]
UNTIL_S = 400.0
DELAYS = (1, 3, 7, 15)
GPUS, SAVE_S, RUN_DAYS = 2048, 30.0, 17.5
CHECKPOINT_PARAMS = 70e9
FIRST_YEAR = {"asynchronous SGD": 2012, "ZeRO": 2019, "DiLoCo": 2023}
"""Of the papers: DistBelief, ZeRO (arXiv:1910.02054), DiLoCo."""


def worked(mode: str, *, times: list[float] = TIMES, bound: int = 0) -> Updates:
    """Eight workers, the last of them four times slower."""
    return simulate_workers(times, until_s=UNTIL_S, mode=mode, bound=bound)


@claim(
    "C9.1-a",
    says="Usual data parallelism is synchronous: all GPUs wait for the gradients' sum, then update.",
    registered=EXACT,
    sources=(CHEN, LAB),
)
def _synchronous() -> Finding:
    run = worked("synchronous")
    rounds = {update.applied_s for update in run.updates}
    return Finding(
        f"With {WORKERS} workers, one of them {SLOWER:g} times slower, each round takes as long as the slow "
        f"one needs: {run.per_second:g} gradients in the time of a usual step, instead of {WORKERS}.",
        [
            Reading("an update has everybody's gradient", len(run.updates) == WORKERS * len(rounds)),
            Reading("all wait for the slowest", min(rounds) == max(TIMES)),
        ],
    )


@claim(
    "C9.1-b",
    says="Asynchronous training lets GPUs update independently of each other.",
    registered=EXACT,
    sources=(HOGWILD, DISTBELIEF, LAB),
)
def _independent() -> Finding:
    ends = [0.0] * WORKERS
    waited = 0.0
    for update in worked("asynchronous").updates:
        waited += update.start_s - ends[update.worker]
        ends[update.worker] = update.done_s
    return Finding(
        "Each worker reads the weights, computes a gradient and applies it, whatever the others do. That "
        "needs somewhere to apply it to: a server that holds the parameters, or an exchange with peers.",
        [Reading("nobody waits for anybody", waited == 0)],
    )


@claim(
    "C9.1-c",
    says="Its advantage: no waiting, so GPUs are used better.",
    registered=ASSUMPTION,
    sources=(CHEN, LAB),
)
def _advantage() -> Finding:
    together, alone = worked("synchronous").per_second, worked("asynchronous").per_second
    late = stable_step(WORKERS - 1)
    return Finding(
        f"In gradients per time, yes: {alone:g} instead of {together:g} in the time of a usual step, with "
        f"one of {WORKERS} workers {SLOWER:g} times slower. But late gradients are worth less: on a "
        f"parabola the step has to fall from {stable_step(0):g} to {late:.3f}. Whether the loss falls faster "
        "per hour is another question.",
        [
            Reading("gradients per time", alone > together),
            Reading("progress that each gradient may make", late >= stable_step(0)),
        ],
    )


@claim(
    "C9.1-d",
    says="Its drawback: gradients are stale, which can hurt convergence.",
    registered=EXACT,
    sources=(MITLIAGKAS, "Zhang et al. 2015 (arXiv:1511.05950)", LAB),
)
def _stale() -> Finding:
    limits = {delay: stable_step(delay) for delay in DELAYS}
    tried = {delay: largest_stable_step(delay) for delay in DELAYS}
    equal = worked("asynchronous", times=[1.0] * WORKERS).updates
    staleness = equal[-1].staleness
    listed = ", ".join(f"{limits[delay]:.3f} at {delay}" for delay in DELAYS)
    return Finding(
        f"With {WORKERS} equal workers a gradient is {staleness} updates old. On a parabola with curvature 1 "
        f"the largest stable step is 2 without delay and {listed}. Asynchrony also acts like momentum, "
        f"{implicit_momentum(WORKERS):.3f} for {WORKERS} workers.",
        [
            Reading("late gradients need smaller steps", all(limit < 2 for limit in limits.values())),
            Reading(
                "tried out, not only derived",
                all(abs(tried[delay] / limits[delay] - 1) < 1e-2 for delay in DELAYS),
            ),
            Reading("staleness is the number of the other workers", staleness == WORKERS - 1),
        ],
    )


@claim(
    "C9.1-e",
    says="A remedy: a threshold on staleness, a bound on how many steps a worker may lag behind.",
    registered=EXACT,
    sources=(HO, LAB),
)
def _threshold() -> Finding:
    free = max(update.staleness for update in worked("asynchronous").updates)
    bounded = worked("stale-synchronous", bound=3)
    oldest = max(update.staleness for update in bounded.updates[len(bounded.updates) // 2 :])
    late = [update for update in bounded.updates if update.applied_s > UNTIL_S / 2]
    rate = len(late) / (UNTIL_S / 2)
    return Finding(
        f"That is stale-synchronous training. With a bound of 3 the oldest gradient is {oldest} updates old "
        f"instead of {free}. It is no cure for a worker that is always slow: after a while all go at its "
        f"pace, {rate:g} gradients in a step's time, as if synchronous. It absorbs delays that pass.",
        [Reading("gradients are less old", oldest < free)],
    )


@claim(
    "C9.1-f",
    says="(Heading.) Asynchronous training is a frontier.",
    registered=IMPRECISE,
    sources=(DISTBELIEF, DILOCO, "Streaming DiLoCo (arXiv:2501.18512)"),
)
def _frontier() -> Finding:
    years = FIRST_YEAR
    return Finding(
        f"Updates by single workers are from {years['asynchronous SGD']} and earlier, and the large runs of "
        "language models that this book quotes are synchronous. What is new in this direction are workers "
        f"that train apart for many steps and then exchange what has changed (DiLoCo, {years['DiLoCo']}).",
        [
            Reading("asynchronous SGD is newer than ZeRO", years["asynchronous SGD"] > years["ZeRO"]),
            Reading("local updates are", years["DiLoCo"] > years["ZeRO"], usual=False),
        ],
    )


@claim(
    "C9.2-a",
    says="GPUs can fail during training.",
    registered=EXACT,
    sources=(LLAMA3,),
)
def _failures() -> Finding:
    fleet = FLEETS["llama3"]
    mtbf = fleet.mtbf_h(GPUS)
    expected = RUN_DAYS * DAY_S / (mtbf * HOUR_S)
    return Finding(
        f"Llama 3 405B was interrupted unexpectedly {fleet.interruptions:g} times in {fleet.hours / 24:g} "
        f"days on {fleet.gpus:,} GPUs: once in {fleet.mtbf_h(fleet.gpus):.1f} hours, or in "
        f"{fleet.gpu_hours_per_failure:,.0f} GPU-hours. On {GPUS:,} GPUs that is once in {mtbf:.1f} hours, "
        f"{expected:.0f} times in {RUN_DAYS:g} days.",
        [Reading("a large run must expect it", expected > 1)],
    )


@claim(
    "C9.2-b",
    says="Elastic training adds and removes GPUs without interrupting the training.",
    registered=IMPRECISE,
    sources=(TORCHRUN, TORCHFT, LAB),
)
def _without_interruption() -> Finding:
    from torch.distributed import run

    said = " ".join((run.__doc__ or "").split())
    stopped = said.count("all existing workers are stopped")
    return Finding(
        "With torchrun every change, also a node that joins, stops all workers, lets them meet again and "
        "starts them anew with other ranks; what was done since the last checkpoint is done again. To lose "
        "no more than a step, replicas must be able to leave and join between steps, which torchft does for "
        "the replicas of data parallelism.",
        [
            Reading("with torchrun, when a node leaves or joins", stopped < 2),
            Reading("by whole replicas between steps, as in torchft", True, usual=False),
        ],
    )


@claim(
    "C9.2-c",
    says="A faulty GPU is isolated automatically and the others go on.",
    registered=ASSUMPTION,
    sources=(TORCHFT, "DeepSpeed, source of its pipeline engine"),
)
def _isolated() -> Finding:
    jobs = {
        name: from_dict(
            {
                "model": {"preset": "article-70b"},
                "train": {"global_batch": 1024},
                "parallel": dict(zip(("dp", "tp", "pp"), sizes, strict=True)),
            }
        ).parallel
        for name, sizes in (("data", (16, 1, 1)), ("3d", (16, 8, 8)))
    }
    replica = {name: job.tp * job.pp for name, job in jobs.items()}
    return Finding(
        "Only whole replicas can be spared. With tensor or pipeline parallelism a GPU takes parts of the "
        f"model with it that no other GPU of its replica has: in 16 × 8 × 8 all {replica['3d']} GPUs of the "
        "replica stop with it. With ZeRO it takes optimizer states with it that nobody else has, until they "
        "are restored from a checkpoint or a copy.",
        [
            Reading("where every GPU has the whole model", replica["data"] == 1),
            Reading("where a replica spans many GPUs", replica["3d"] == 1),
        ],
    )


@claim(
    "C9.2-d",
    says="It recovers by means of checkpoints.",
    registered=EXACT,
    sources=("Young 1974", "Daly 2006", LAB),
)
def _checkpoints() -> Finding:
    fleet = FLEETS["llama3"]
    size = checkpoint_bytes(CHECKPOINT_PARAMS) / GB
    plans = {gpus: goodput(mtbf_s=fleet.mtbf_s(gpus), save_s=SAVE_S) for gpus in (GPUS, fleet.gpus)}
    costs = "; ".join(
        f"{gpus:,} GPUs should save every {plan.interval_s / 60:.1f} minutes, which costs "
        f"{percent_text(plan.overhead_fraction)}"
        for gpus, plan in plans.items()
    )
    run_s = RUN_DAYS * DAY_S
    times = {"mtbf_s": fleet.mtbf_s(GPUS), "save_s": SAVE_S}
    with_saves = expected_wall_time(run_s, **times, interval_s=plans[GPUS].interval_s)
    without = expected_wall_time(run_s, **times, interval_s=run_s)
    return Finding(
        f"For 70B parameters a checkpoint has {size:.0f} GB, 14 bytes a parameter. If a save takes "
        f"{SAVE_S:g} s and failures are as frequent as for Llama 3: {costs}.",
        [
            Reading("without them a long run would not end", with_saves < without / 1000),
            Reading("the size of a checkpoint", prints_as(size, 980)),
        ],
    )
