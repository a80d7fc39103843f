"""How many parameters a rank holds: what tensor parallelism leaves, experts dealt out over their group."""

from dataclasses import dataclass

from pdtlib.plan.chunks import layout_of
from pdtlib.plan.params import Stage, layer_params, stages
from pdtlib.plan.spec import Job


@dataclass(frozen=True)
class Held:
    """Parameters of one rank, before data parallelism shards them.

    ``shared`` are alike on all data- and context-parallel ranks, ``experts`` on every ``ep``-th of them.
    """

    shared: float
    experts: float

    @property
    def total(self) -> float:
        return self.shared + self.experts

    def groups(self, job: Job) -> tuple[tuple[float, int, int], ...]:
        """(parameters, ranks that hold the same, ranks of those in a node) of both kinds, if any."""
        parallel = job.parallel
        ranks, near = parallel.dp * parallel.cp, job.hardware.gpus_per_node // parallel.tp
        found = (
            (self.shared, ranks, max(1, near)),
            (self.experts, ranks // parallel.ep, max(1, near // parallel.ep)),
        )
        return tuple(group for group in found if group[0])


def expert_params(job: Job) -> int:
    """Parameters of all experts of one layer."""
    model = job.model
    if model.moe is None:
        return 0
    return model.moe.experts * (3 if model.activation == "swiglu" else 2) * model.hidden * model.moe.ffn


def held_layer(job: Job) -> Held:
    """What a rank holds of one layer."""
    experts = expert_params(job)
    parallel = job.parallel
    return Held((layer_params(job.model) - experts) / parallel.tp, experts / (parallel.tp * parallel.ep))


def held_stage(job: Job, stage: Stage) -> Held:
    """What a rank of a pipeline stage holds: DualPipe's both copies."""
    layer, layers, copies = held_layer(job), len(stage.layers), layout_of(job).copies
    rest = (stage.params - layers * layer_params(job.model)) / job.parallel.tp
    return Held(copies * (layers * layer.shared + rest), copies * layers * layer.experts)


def held_most(job: Job) -> Held:
    """What a rank of the stage with the most parameters holds."""
    return max((held_stage(job, stage) for stage in stages(job)), key=lambda held: held.total)
