"""``pdt goodput``: how often a run fails, how often to save, and what both cost."""

import json
from typing import Annotated, Any, NoReturn

import typer

from pdtlib.plan.arguments import BadArgument
from pdtlib.plan.job import load
from pdtlib.plan.params import count
from pdtlib.plan.reliability import (
    FLEETS,
    best_interval,
    checkpoint_bytes,
    daly_interval,
    spares_needed,
)
from pdtlib.plan.reliability import (
    goodput as losses,
)
from pdtlib.plan.spec import JobError
from pdtlib.plan.units import DAY_S, GB, HOUR_S, percent_text, time_text


def goodput(
    job: Annotated[str, typer.Argument(help="A job file; its GPUs and its model's checkpoint count.")] = "",
    gpus: Annotated[int | None, typer.Option(help="GPUs of the run, if no job says so.")] = None,
    fleet: Annotated[str, typer.Option(help=f"Failure rate of: {', '.join(FLEETS)}.")] = "llama3",
    gpu_mtbf_h: Annotated[
        float | None, typer.Option(help="GPU-hours between failures, instead of a fleet's.")
    ] = None,
    save_s: Annotated[float | None, typer.Option(help="Seconds that a save stops the run.")] = None,
    save_gb_s: Annotated[
        float | None, typer.Option(help="Rate at which a job's checkpoint is written, GB/s.")
    ] = None,
    restart_s: Annotated[float, typer.Option(help="Seconds from a failure until the run works again.")] = 0.0,
    interval_s: Annotated[
        float | None, typer.Option(help="Seconds between saves; by default Young's best.")
    ] = None,
    gpus_per_node: Annotated[int, typer.Option(help="GPUs of a node, which fails as a whole.")] = 8,
    repair_h: Annotated[float, typer.Option(help="Hours until a failed node is back.")] = 24.0,
    json_: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """What failures and checkpoints cost a run. A save takes 30 s unless told otherwise."""
    try:
        if bool(job) == (gpus is not None):
            raise BadArgument("gpus", gpus, "give a job or --gpus, one of the two")
        if fleet not in FLEETS:
            raise BadArgument("fleet", fleet, valid=tuple(FLEETS))
        parameters = None
        if job:
            loaded = load(job)
            gpus, parameters = loaded.parallel.world_size, count(loaded.model).total
        assert gpus is not None
        numbers = report(
            gpus=gpus,
            gpu_hours_per_failure=FLEETS[fleet].gpu_hours_per_failure if gpu_mtbf_h is None else gpu_mtbf_h,
            save_s=_save_time(save_s, save_gb_s, parameters),
            restart_s=restart_s,
            interval_s=interval_s,
            gpus_per_node=gpus_per_node,
            repair_h=repair_h,
            parameters=parameters,
        )
    except JobError as error:
        from pdtlib.cli.predict import print_problems
        from pdtlib.plan.predict import problem_rows

        print_problems(error)
        _exit(problem_rows(error), as_json=json_)
    except (BadArgument, OSError) as error:
        typer.echo(f"pdt goodput: {error}", err=True)
        valid = list(getattr(error, "valid", ()))
        _exit([{"field": getattr(error, "field", ""), "message": str(error), "valid": valid}], as_json=json_)
    if json_:
        typer.echo(json.dumps(numbers))
    else:
        _show(numbers)


def report(
    *,
    gpus: int,
    gpu_hours_per_failure: float,
    save_s: float,
    restart_s: float = 0.0,
    interval_s: float | None = None,
    gpus_per_node: int = 8,
    repair_h: float = 24.0,
    parameters: int | None = None,
) -> dict[str, Any]:
    """The JSON of ``pdt goodput``. Raises BadArgument."""
    if gpus < 1:
        raise BadArgument("gpus", gpus, valid=("1 or more",))
    if not gpu_hours_per_failure > 0:
        raise BadArgument("gpu_mtbf_h", gpu_hours_per_failure, valid=("above 0",))
    if gpus_per_node < 1:
        raise BadArgument("gpus_per_node", gpus_per_node, valid=("1 or more",))
    mtbf_h = gpu_hours_per_failure / gpus
    mtbf_s = mtbf_h * HOUR_S
    result = losses(mtbf_s=mtbf_s, save_s=save_s, restart_s=restart_s, interval_s=interval_s)
    return {
        "problems": [],
        "gpus": gpus,
        "mtbf_h": mtbf_h,
        "failures_per_day": DAY_S / mtbf_s,
        "save_s": save_s,
        "restart_s": restart_s,
        "checkpoint_bytes": None if parameters is None else checkpoint_bytes(parameters),
        "checkpoint_interval_s": result.interval_s,
        "daly_interval_s": daly_interval(mtbf_s=mtbf_s, save_s=save_s),
        "best_interval_s": best_interval(mtbf_s=mtbf_s, save_s=save_s),
        "overhead_fraction": result.overhead_fraction,
        "goodput": result.goodput,
        "spare_nodes_99": spares_needed(
            nodes=-(-gpus // gpus_per_node),
            node_mtbf_h=gpu_hours_per_failure / gpus_per_node,
            repair_h=repair_h,
        ),
    }


def _save_time(save_s: float | None, save_gb_s: float | None, parameters: int | None) -> float:
    if save_s is not None and save_gb_s is not None:
        raise BadArgument("save_gb_s", save_gb_s, "give --save-s or --save-gb-s, one of the two")
    if save_gb_s is None:
        return 30.0 if save_s is None else save_s
    if parameters is None:
        raise BadArgument("save_gb_s", save_gb_s, "only a job has a checkpoint's size; give --save-s")
    if not save_gb_s > 0:
        raise BadArgument("save_gb_s", save_gb_s, valid=("above 0",))
    return checkpoint_bytes(parameters) / (save_gb_s * GB)


def _exit(problems: list[dict[str, Any]], *, as_json: bool) -> NoReturn:
    if as_json:
        typer.echo(json.dumps({"problems": problems}, ensure_ascii=False))
    raise typer.Exit(2)


def _show(numbers: dict[str, Any]) -> None:
    hour = HOUR_S
    rows = [
        ("a failure every", time_text(numbers["mtbf_h"] * hour), f"{numbers['gpus']:,} GPUs"),
        ("save every", time_text(numbers["checkpoint_interval_s"]), f"a save takes {numbers['save_s']:g} s"),
        ("overhead", percent_text(numbers["overhead_fraction"]), "to first order"),
        ("goodput", percent_text(numbers["goodput"]), "work per time, if failures come at random"),
        ("spare nodes", str(numbers["spare_nodes_99"]), "fill every place 99 % of the time"),
    ]
    width = max(len(value) for _, value, _ in rows)
    for name, value, note in rows:
        typer.echo(f"{name:<16}{value:>{width}}  {note}")
