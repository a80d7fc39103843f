"""What the exporters share: the result, and the collection of reasons to refuse."""

from dataclasses import dataclass, field

from pdtlib.plan.chunks import num_layers, num_recomputed
from pdtlib.plan.spec import Job, JobError, Problem


@dataclass(frozen=True)
class Export:
    """Files by name, and what the reader must do or know besides them."""

    files: dict[str, str]
    notes: tuple[str, ...] = ()


@dataclass
class Rules:
    """Collects why a target cannot express a job."""

    target: str
    problems: list[Problem] = field(default_factory=list)

    def refuse(self, condition: bool, path: str, reason: str, *valid: object) -> None:
        """Note a reason if ``condition`` holds."""
        if condition:
            self.problems.append(Problem(path, f"{self.target}: {reason}", valid))

    def check(self) -> None:
        """Raise :class:`JobError` with every reason noted."""
        if self.problems:
            raise JobError(self.problems)


def recomputes_a_part(job: Job) -> bool:
    """Whether the job recomputes some of its layers, but not all."""
    return any(0 < num_recomputed(job, stage) < num_layers(job, stage) for stage in range(job.parallel.pp))
