"""What the rank cube knows of the chosen rank: its group on each axis, where it lies, what it sends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pdtlib.explore.explorer import Values
from pdtlib.plan.comm import Message
from pdtlib.plan.job import Job, from_dict
from pdtlib.plan.ledger import messages
from pdtlib.plan.ranks import coordinates, group_of, nodes_of

AXES = ("tp", "pp", "dp")


@dataclass(frozen=True)
class Axis:
    """One axis of the chosen rank: its group, where it lies, and what the rank sends along it in a step."""

    name: str
    group: tuple[int, ...]
    num_groups: int
    nodes: tuple[int, ...]
    messages: tuple[Message, ...]

    @property
    def sent_bytes(self) -> float:
        return sum(message.sent_bytes_per_rank for message in self.messages)

    @property
    def inside(self) -> bool:
        return len(self.nodes) == 1


def job_of(values: Values) -> Job:
    """The job of the controls."""
    return from_dict(
        {
            "model": {"preset": values["model"]},
            "train": {
                "global_batch": values["micro_batches"] * values["dp"],
                "micro_batch": 1,
                "sequence_parallel": values["sp"] and values["tp"] > 1,
            },
            "parallel": {name: values[name] for name in AXES},
            "hardware": {
                "gpu": values["gpu"],
                "gpus_per_node": values["per_node"],
                "n_gpus": values["dp"] * values["tp"] * values["pp"],
            },
        }
    )


def axes_of(values: Values, job: Job, *, order: Sequence[str]) -> list[Axis]:
    """The chosen rank's axes, in the order of :data:`AXES`."""
    rank, parallel = values["rank"], job.parallel
    place = coordinates(rank, parallel=parallel, order=order)
    sent = messages(job, place["pp"], place["dp"])
    axes = []
    for name in AXES:
        group = group_of(rank, name, parallel=parallel, order=order)
        axes.append(
            Axis(
                name,
                group,
                parallel.world_size // len(group),
                nodes_of(group, gpus_per_node=values["per_node"]),
                tuple(message for message in sent if message.axis == name),
            )
        )
    return axes
