"""What a run is asked to do: the options that ``pdt run`` and ``python -m pdtlib.train`` share."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pdtlib.plan.ranks import ARTICLE_ORDER, MEGATRON_ORDER

DEVICES = ("auto", "cpu", "cuda")
COMPILERS = ("none", "inductor", "aot_eager", "eager")
"""Backends of torch.compile for the layers: inductor makes code, the other two only trace, to find faults."""
RANK_ORDERS = {"article": ARTICLE_ORDER, "megatron": MEGATRON_ORDER}
"""Which axis's ranks are neighbours: tp, cp, pp, dp in the article, tp, cp, dp, pp in Megatron-LM."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """``steps`` is the step to stop before, counted from the start of the run; None takes the job's.

    ``changes`` are fields of the job to set, as ``section.field=value``. The last six are the business of
    :mod:`pdtlib.resilience` and :mod:`pdtlib.testbed`.
    """

    job: Path
    out: Path
    steps: int | None = None
    data: tuple[Path, ...] = ()
    changes: tuple[str, ...] = ()
    checkpoint_every: int = 0
    resume: bool = False
    overwrite: bool = False
    device: str = "auto"
    compiler: str = "none"
    rank_order: str = "article"
    elastic: bool = False
    watchdog_s: float = 0.0
    memory_every: int = 0
    preemptible: bool = False
    stage_ms: float = 0.0
    faults: Path | None = None

    def arguments(self) -> list[str]:
        """The command line of :mod:`pdtlib.train` that asks for the same."""
        found = [str(self.job.absolute()), "--out", str(self.out.absolute()), "--device", self.device]
        found += ["--rank-order", self.rank_order, "--compiler", self.compiler]
        found += [] if self.steps is None else ["--steps", str(self.steps)]
        found += ["--checkpoint-every", str(self.checkpoint_every)]
        for change in self.changes:
            found += ["--set", change]
        for path in self.data:
            found += ["--data", str(path.absolute())]
        found += ["--resume"] if self.resume else []
        found += ["--elastic"] if self.elastic else []
        found += ["--watchdog", str(self.watchdog_s), "--memory-every", str(self.memory_every)]
        found += ["--preemptible"] if self.preemptible else []
        found += ["--stage-ms", str(self.stage_ms)] if self.stage_ms else []
        found += [] if self.faults is None else ["--faults", str(self.faults.absolute())]
        return found + (["--overwrite"] if self.overwrite else [])


def parse(arguments: Sequence[str]) -> Options:
    """Read a command line; a wrong one prints its usage and exits with 2."""
    parser = argparse.ArgumentParser(
        prog="python -m pdtlib.train",
        description="Train a job as one rank. Start as many as the job needs with torchrun, or use pdt run.",
    )
    parser.add_argument("job", type=Path, metavar="JOB", help="job file (TOML, or JSON if it ends in .json)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="run directory to write")
    parser.add_argument("--steps", type=int, help="stop before this step (default: the job's)")
    parser.add_argument(
        "--data", type=Path, action="extend", nargs="+", default=[], metavar="FILE",
        help="text files, or token files that end in .bin (default: Python's standard library)",
    )  # fmt: skip
    parser.add_argument(
        "--set", action="append", default=[], dest="changes", metavar="FIELD=VALUE",
        help="change a field of the job, such as train.zero_stage=3",
    )  # fmt: skip
    parser.add_argument(
        "--checkpoint-every", type=int, default=0, metavar="N", help="also save every N steps"
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on from DIR's last checkpoint, if it has one"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the run that DIR holds")
    parser.add_argument("--device", choices=DEVICES, default="auto")
    parser.add_argument(
        "--compiler",
        choices=COMPILERS,
        default="none",
        help="compile the layers with this torch.compile backend",
    )
    parser.add_argument(
        "--rank-order", choices=RANK_ORDERS, default="article",
        help="which ranks are neighbours: pp before dp (article), or dp before pp (megatron)",
    )  # fmt: skip
    parser.add_argument(
        "--elastic", action="store_true",
        help="take as many ranks as there are (dp follows), and go on from what DIR holds",
    )  # fmt: skip
    parser.add_argument(
        "--watchdog", type=float, default=0.0, dest="watchdog_s", metavar="SECONDS",
        help="end the run when a rank waits for others as long as this, and name them (default: never)",
    )  # fmt: skip
    parser.add_argument(
        "--memory-every", type=int, default=0, metavar="N",
        help="every N steps, keep the state in this node's memory and in the next node's",
    )  # fmt: skip
    parser.add_argument(
        "--preemptible", action="store_true",
        help="when told to end (SIGTERM), save after the step at hand and end with exit code 143",
    )  # fmt: skip
    parser.add_argument(
        "--stage-ms", type=float, default=0.0, metavar="MS",
        help="let a pipeline stage's forward take so long (it sleeps), and each half of its backward",
    )  # fmt: skip
    parser.add_argument("--faults", type=Path, metavar="FILE", help="let the faults happen that FILE lists")
    found = parser.parse_args(arguments)
    return Options(**{**vars(found), "data": tuple(found.data), "changes": tuple(found.changes)})


def read_change(text: str) -> tuple[str, object]:
    """Split ``train.zero_stage=3`` into a dotted path and a value, which is read as TOML or else as a text.

    Raises ``ValueError`` for a text without ``=``.
    """
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise ValueError(f"--set {text}: write it as section.field=value, such as train.zero_stage=3")
    try:
        return path.strip(), tomllib.loads(f"value = {value}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return path.strip(), value.strip()
