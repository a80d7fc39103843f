"""The zero-bubble paper's tables: bubble rates from profiled times, and speed-ups between schedules."""

from typing import Any

from published_tables import Case

from pdtlib.plan.job import Job, from_dict
from pdtlib.plan.schedule import Costs, Timeline, build, simulate, zb_auto
from pdtlib.plan.time.constants import system_of
from pdtlib.plan.time.layer import layer_time
from pdtlib.plan.time.machine import System
from pdtlib.plan.time.stage import Ends, stages_work

# Its two models: layers with the ends' missing ones filled in, hidden, heads.
MODELS = {"1.5B": (24, 2304, 24), "14.6B": (48, 5120, 40)}
KEPT_FOR_WEIGHT = 0.4
"""Share of a micro-batch that its weight gradient waits with: 32 h of 34 h + 5 a s, 0.4 for such models."""
TRANSFER_S = 5e-4  # of its own profile


def bubbles(case: Case) -> dict[str, float]:
    """Bubble rates of the zero-bubble paper's Table 5, from its profiled times."""
    data = case.get("input") or {}
    if "T_W_ms" not in data:
        return {}
    stages, micro_batches = data["p"], data["m"]
    costs = Costs(
        forward=data["T_F_ms"],
        backward_input=data["T_B_ms"],
        backward_weight=data["T_W_ms"],
        transfer=data["T_comm_ms"],
    )

    def rate(name: str, **more: Any) -> float:
        schedule = build(name, stages=stages, microbatches=micro_batches, **more)
        return simulate(schedule, costs).bubble_rate

    def best(cap: float) -> float:
        # A waiting weight gradient holds 32 h of the 34 h + 5 a s bytes of a micro-batch, 0.4 for such
        # models.
        table = zb_auto(stages, micro_batches, costs=costs, memory_cap=cap, kept_for_weight=KEPT_FOR_WEIGHT)
        return simulate(table, costs).bubble_rate

    one = rate("zb-h1")
    return {
        "1F1B": rate("1f1b"),
        "1F1B-I": rate("interleaved", chunks=data.get("chunks_for_interleaved", 2)),
        "ZB-H1": one,
        "ZB-H2": rate("zb-h2"),
        "ZB-1p": min(one, best(stages)),
        "ZB-2p": min(rate("zb-h2"), best(2 * stages)),
    }


def speedups(case: Case) -> dict[str, float]:
    """Step times of 1F1B over those of a zero-bubble schedule, with the layers' predicted times."""
    data = case.get("input") or {}
    if data.get("model") not in MODELS or "m" not in data:
        return {}
    layers, hidden, heads = MODELS[data["model"]]
    stages, micro_batches = data.get("p") or data["gpus"], data["m"]
    job = from_dict(
        {
            "model": {
                "layers": layers,
                "hidden": hidden,
                "heads": heads,
                "vocab": 51200,
                "seq": 1024,
                "dropout": 0.1,
            },
            "train": {"micro_batch": data["b"], "precision": "fp16", "flash_attention": False},
            "hardware": {"cluster": "dgx-a100"},
        }
    )
    time = layer_time(job, system=system_of(job, software="megatron-zb"))
    share = layers / stages
    costs = Costs(
        forward=share * time.forward.total,
        backward_input=share * (time.backward.total - time.weight.total),
        backward_weight=share * time.weight.total,
        transfer=TRANSFER_S,
    )

    def makespan(name: str) -> float:
        return simulate(build(name, stages=stages, microbatches=micro_batches), costs).makespan

    free = zb_auto(stages, micro_batches, costs=costs, memory_cap=2 * stages, kept_for_weight=KEPT_FOR_WEIGHT)
    base = makespan("1f1b")
    return {
        "speedup_zb2p_over_1f1b": base / min(makespan("zb-h2"), simulate(free, costs).makespan),
        "zbv_over_1f1b": base / makespan("zb-v"),
        "zb1p_over_1f1b": base / makespan("zb-h1"),
    }


def gain_of_measure(job: Job, system: System, *, fewer_at_ends: Ends) -> float:
    """Seconds that "ZB-2p", made to measure for these stages in twice 1F1B's memory, saves over ZB-H2."""
    stages, micro_batches = job.parallel.pp, job.gradient_accumulation
    times = [stage.times() for stage in stages_work(job, system=system, fewer_at_ends=fewer_at_ends)]
    forward, backward_input, backward_weight = (list(column) for column in zip(*times, strict=True))
    costs = Costs(forward=forward, backward_input=backward_input, backward_weight=backward_weight)
    made = zb_auto(stages, micro_batches, costs=costs, memory_cap=2 * stages, kept_for_weight=KEPT_FOR_WEIGHT)
    standard = build("zb-h2", stages=stages, microbatches=micro_batches)
    return max(0.0, _occupied(simulate(standard, costs)) - _occupied(simulate(made, costs)))


def _occupied(timeline: Timeline) -> float:
    """The longest that a rank is occupied; steps need no barrier."""
    return max(ends[-1] - starts[0] for starts, ends in zip(timeline.start, timeline.end, strict=True))
