"""``pdt predict``: what a job will hold, compute and send, as tables or as JSON."""

import json
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from pdtlib.plan.job import load, loads
from pdtlib.plan.predict import predict as predict_job
from pdtlib.plan.predict import problem_rows
from pdtlib.plan.spec import JobError, Problem
from pdtlib.plan.time.constants import SOFTWARE, USUAL_SOFTWARE
from pdtlib.plan.units import (
    TFLOP,
    bytes_text,
    column_unit,
    count_text,
    flops_text,
    percent_text,
    rate_text,
    time_text,
)


def predict(
    job: Annotated[str, typer.Argument(help="The job: a TOML file, or JSON if its name ends so.")] = "",
    json_: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    jsonl: Annotated[str, typer.Option(help="A file with a job a line; prints a result a line.")] = "",
    software: Annotated[str, typer.Option(help="The training stack whose times are predicted.")] = "",
) -> None:
    """Predict JOB. Exit code 2 with every problem on stderr if it cannot work."""
    if bool(job) == bool(jsonl):
        refuse(JobError([Problem("", "give a JOB or --jsonl FILE, one of the two")]), as_json=json_)
    stack = known_software(software, as_json=json_)
    if jsonl:
        _predict_lines(jsonl, stack, as_json=json_)
        return
    try:
        result = predict_job(load(job), software=stack)
    except (JobError, OSError) as error:
        refuse(as_job_error(error, job), as_json=json_)
    if json_:
        typer.echo(json.dumps(result, ensure_ascii=False))
    else:
        _show(result)


def known_software(name: str, *, as_json: bool) -> str:
    """The stack of that name, the usual one for ""; exit 2 for an unknown one."""
    if name and name not in SOFTWARE:
        refuse(JobError([Problem("--software", f"{name!r} is not known", tuple(SOFTWARE))]), as_json=as_json)
    return name or USUAL_SOFTWARE


def as_job_error(error: JobError | OSError, path: str) -> JobError:
    """A file that cannot be read, as a problem of the job."""
    if isinstance(error, JobError):
        return error
    return JobError([Problem("", f"cannot read {path}: {error.strerror or error}")])


def print_problems(error: JobError) -> None:
    """Every problem on stderr, a line each."""
    for problem in error.problems:
        valid = f" (valid: {', '.join(map(str, problem.valid))})" if problem.valid else ""
        typer.echo(f"{problem.field + ': ' if problem.field else ''}{problem.message}{valid}", err=True)


def refuse(error: JobError, *, as_json: bool, code: int = 2) -> NoReturn:
    """Exit ``code`` with every problem on stderr, and as JSON on stdout where that was asked for."""
    print_problems(error)
    if as_json:
        typer.echo(json.dumps({"problems": problem_rows(error)}, ensure_ascii=False))
    raise typer.Exit(code)


def _predict_lines(path: str, stack: str, *, as_json: bool) -> None:
    """A result for every line that is not blank, in order; a bad job's result is its problems."""
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        refuse(JobError([Problem("", f"{path} is not UTF-8 text ({error.reason})")]), as_json=as_json)
    except OSError as error:
        refuse(as_job_error(error, path), as_json=as_json)
    bad = False
    for line in lines:
        if not line.strip():
            continue
        try:
            result = predict_job(loads(line, "json"), software=stack)
        except JobError as error:
            result = {"problems": problem_rows(error)}
        bad = bad or bool(result["problems"])
        typer.echo(json.dumps(result, ensure_ascii=False))
    if bad:
        raise typer.Exit(2)


def _show(result: dict[str, Any]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    total, active = result["params"]["total"], result["params"]["active"]
    head = f"{count_text(total)} parameters ({total:,}"
    console.print(head + (")" if active == total else f"; {active:,} active for a token)"))
    layout = result["layout"]
    console.print(
        f"{layout['world_size']} ranks, {len(layout['stages'])} stage(s), "
        f"{layout['gradient_accumulation']} micro-batch(es) a step, "
        f"{flops_text(result['flops']['model_per_step'])} model FLOPs a step\n"
    )
    columns = ("params", "grads", "optimizer", "activations", "logits", "buffers", "total")
    style: dict[str, Any] = {"box": box.SIMPLE, "title_justify": "left", "padding": (0, 1, 0, 0)}
    scale, unit = column_unit(result["memory"]["max_total"])
    table = Table("stage", "layers", *columns, title=f"Memory of a rank, {unit}", **style)
    for column in table.columns:
        column.justify = "right"
    for index, (stage, held) in enumerate(zip(layout["stages"], result["memory"]["stages"], strict=True)):
        table.add_row(str(index), str(stage["layers"]), *(f"{held[name] / scale:,.2f}" for name in columns))
    console.print(table)
    if result["memory"]["framework_overhead"]:
        overhead = bytes_text(result["memory"]["framework_overhead"])
        console.print(f"beside that, the framework itself takes about {overhead} of a GPU")
    for warning in result["warnings"]:
        console.print(f"[bold]warning:[/bold] {warning}")
    if "time" in result:
        _show_time(console, result)
    if not result["comm"]:
        return
    sent = Table("axis", "phase", "collective", "calls", "message", "sent", **style)
    sent.title = "Sent by a rank of the first stage in a step"
    for column in sent.columns[3:]:
        column.justify = "right"
    for row in result["comm"]:
        sent.add_row(
            row["axis"],
            row["phase"],
            row["collective"],
            str(row["count"]),
            bytes_text(row["message_bytes"]),
            bytes_text(row["sent_bytes_per_rank"]),
        )
    console.print(sent)


def _show_time(console: Any, result: dict[str, Any]) -> None:
    time, rate = result["time"], result["throughput"]
    parts = {"compute": time["compute_s"], "bubble": time["bubble_s"]}
    parts |= {f"exposed {axis}": seconds for axis, seconds in time["exposed_comm_s"].items()}
    shown = ", ".join(f"{name} {time_text(seconds)}" for name, seconds in parts.items() if seconds > 0)
    console.print(f"step {time_text(time['step_s'])}: {shown}")
    console.print(
        f"{rate['tokens_per_s']:,.0f} tokens/s, {rate_text(rate['tflops_per_gpu'] * TFLOP, 'model FLOP')} "
        f"a GPU, MFU {percent_text(rate['mfu'])}\n"
    )
