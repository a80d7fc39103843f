"""``pdt doctor``: what this machine can do, what is misconfigured, and how to mend it."""

import importlib.util
import json
import os
from dataclasses import asdict
from typing import Annotated

import typer


def doctor(
    ranks: Annotated[
        int | None, typer.Option(min=1, help="Ranks that will run on this machine. Default: GPUs, or cores.")
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure/--no-measure", help="Also send and allocate something, for a second.")
    ] = True,
    json_: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Look for what will make a training slow, fragile or impossible here, with a fix for each finding.

    To measure between nodes, start it on all of them: torchrun --nnodes 2 ... --no-python pdt doctor. Exit
    code 1 when something is bad: a run will fail or hang.
    """
    if importlib.util.find_spec("torch") is None:
        typer.echo("pdt doctor: needs PyTorch; install it with: pip install 'pdtlib[engine]'", err=True)
        raise typer.Exit(2)
    import torch

    from pdtlib.resilience.doctor.examine import examine

    findings = examine(ranks=ranks or torch.cuda.device_count() or os.cpu_count() or 1, measure=measure)
    if json_:
        typer.echo(json.dumps([asdict(finding) for finding in findings]))
    else:
        for finding in findings:
            typer.echo(f"{finding.verdict:<4}  {finding.check}: {finding.message}")
            if finding.fix:
                typer.echo(f"      -> {finding.fix}")
    raise typer.Exit(1 if any(finding.verdict == "bad" for finding in findings) else 0)
