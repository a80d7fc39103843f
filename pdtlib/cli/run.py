"""``pdt run``: train a job on this machine, on as many processes as it needs, under torchrun's agent."""

import importlib.util
import json
from pathlib import Path
from typing import Annotated

import typer

from pdtlib.cli.predict import print_problems
from pdtlib.plan.predict import problem_rows
from pdtlib.plan.spec import JobError


def run(
    job: Annotated[Path, typer.Argument(help="The job: a TOML file, or JSON if its name ends so.")],
    out: Annotated[Path, typer.Option(help="The run directory to write.")],
    steps: Annotated[int | None, typer.Option(help="Stop before this step; default: the job's.")] = None,
    nproc: Annotated[
        int | None, typer.Option(help="Processes to start; sets dp to fit. Default: the job's degrees.")
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(help="A text file, or a token file that ends in .bin; give it again for more files."),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="Change a field of the job: train.zero_stage=3.")
    ] = None,
    checkpoint_every: Annotated[int, typer.Option(help="Also save every so many steps.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint, if any.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run that OUT holds.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    compiler: Annotated[
        str, typer.Option(help="torch.compile's backend for the layers: inductor, or none.")
    ] = "none",
    rank_order: Annotated[
        str, typer.Option(help="Which ranks are neighbours: article (pp before dp) or megatron (dp first).")
    ] = "article",
    max_restarts: Annotated[
        int, typer.Option(min=0, help="Start failed ranks again so often; what they had saved is not lost.")
    ] = 0,
    watchdog: Annotated[
        float, typer.Option(help="Seconds after which a rank that waits names those it waits for.")
    ] = 0.0,
    memory_every: Annotated[
        int, typer.Option(help="Keep the state in memory every so many steps, for a restart.")
    ] = 0,
    stage_ms: Annotated[
        float,
        typer.Option(
            help="Let a pipeline stage's forward take so many ms (it sleeps), as on devices of its own."
        ),
    ] = 0.0,
    json_: Annotated[bool, typer.Option("--json", help="Print problems or the last step as JSON.")] = False,
) -> None:
    """Train JOB on this machine and leave a run directory.

    Exit codes: 0 done, 2 refused before anything was started or touched, 130 Ctrl-C, 128 + n if signal n
    killed a rank, else the failing rank's own. In a pipeline (pdt run ... | tee log) the shell reports
    tee's code unless it runs with `set -o pipefail`.
    """
    if importlib.util.find_spec("torch") is None:
        typer.echo("pdt run: training needs PyTorch; install it with: pip install 'pdtlib[engine]'", err=True)
        raise typer.Exit(2)
    from pdtlib.engine.training.checks import check
    from pdtlib.engine.training.launch import launch
    from pdtlib.engine.training.options import Options
    from pdtlib.engine.training.run_dir import read_metrics

    changes = [*(set_ or []), *([] if nproc is None else [f"hardware.n_gpus={nproc}"])]
    options = Options(
        job=job,
        out=out,
        steps=steps,
        data=tuple(data or ()),
        changes=tuple(changes),
        checkpoint_every=checkpoint_every,
        resume=resume,
        overwrite=overwrite,
        device=device,
        compiler=compiler,
        elastic=max_restarts > 0,
        watchdog_s=watchdog,
        memory_every=memory_every,
        stage_ms=stage_ms,
        rank_order=rank_order,
    )
    try:
        checked = check(options, world_size=None, local_world_size=1)
    except JobError as refusal:
        print_problems(refusal)
        if json_:
            typer.echo(json.dumps({"problems": problem_rows(refusal)}, ensure_ascii=False))
        raise typer.Exit(2) from None
    code = launch(
        options.arguments(), num_processes=checked.job.parallel.world_size, max_restarts=max_restarts
    )
    if json_ and code == 0:
        typer.echo(json.dumps({"problems": [], "out": str(out), "last": read_metrics(out)[-1]}))
    raise typer.Exit(code)
