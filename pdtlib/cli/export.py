"""``pdt export``: a job as the configuration of DeepSpeed, Megatron-LM or torchtitan."""

import json
from pathlib import Path
from typing import Annotated

import typer

from pdtlib.cli.predict import as_job_error, refuse
from pdtlib.plan.export import TARGETS
from pdtlib.plan.export import export as export_job
from pdtlib.plan.job import load
from pdtlib.plan.spec import JobError, Problem


def export(
    job: Annotated[str, typer.Argument(help="The job: a TOML file, or JSON if its name ends so.")],
    to: Annotated[str, typer.Option(help="deepspeed, megatron or torchtitan.")],
    out: Annotated[str, typer.Option(help="The folder to write into.")],
    json_: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> None:
    """Write JOB as TO reads it. Exit code 2 with every reason if TO cannot express it."""
    if to not in TARGETS:
        refuse(JobError([Problem("--to", f"{to!r} is not known", tuple(TARGETS))]), as_json=json_)
    try:
        result = export_job(load(job), to=to)
    except (JobError, OSError) as error:
        refuse(as_job_error(error, job), as_json=json_)
    written = []
    try:
        Path(out).mkdir(parents=True, exist_ok=True)
        for name, text in result.files.items():
            path = Path(out) / name
            path.write_text(text, encoding="utf-8")
            written.append(str(path))
    except OSError as error:
        cause = JobError([Problem("--out", f"cannot write {error.filename}: {error.strerror}")])
        refuse(cause, as_json=json_, code=1)
    if json_:
        report = {"problems": [], "files": written, "notes": list(result.notes)}
        typer.echo(json.dumps(report, ensure_ascii=False))
        return
    for line in written:
        typer.echo(line)
    for note in result.notes:
        typer.echo(f"note: {note}")
