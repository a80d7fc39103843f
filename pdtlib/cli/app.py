"""``pdt``: finds the command and imports that command only, so that ``pdt --help`` starts at once."""

import difflib
import importlib
import json
import sys
from collections.abc import Sequence

import pdtlib

COMMANDS: dict[str, tuple[str, str]] = {
    # name: (module:function, one line for the list)
    "predict": ("pdtlib.cli.predict:predict", "What a job will hold, compute and send."),
    "schedule": ("pdtlib.cli.schedule:schedule", "A pipeline schedule: its table, bubble and memory."),
    "goodput": ("pdtlib.cli.goodput:goodput", "Failures, checkpoint interval and what they cost."),
    "plan": ("pdtlib.cli.plan:plan", "The best layouts of a job on so many GPUs."),
    "export": ("pdtlib.cli.export:export", "A job for DeepSpeed, Megatron-LM or torchtitan."),
    "lint": ("pdtlib.cli.lint:lint", "A target's verdict on every key of a configuration."),
    "calibrate": ("pdtlib.cli.calibrate:calibrate", "Measure this machine for predictions on it."),
    "run": ("pdtlib.cli.run:run", "Train a job on this machine."),
    "dryrun": ("pdtlib.cli.dryrun:dryrun", "What one rank of a job holds and sends, without the run."),
    "compare": ("pdtlib.cli.compare:compare", "A run's measured values beside the predicted ones."),
    "report": ("pdtlib.cli.report:report", "A run as one HTML file that works offline."),
    "doctor": ("pdtlib.cli.doctor:doctor", "What is misconfigured on this machine, and the fix."),
    "testbed": ("pdtlib.cli.testbed:app", "A cluster in this machine: nodes, slow links, failures."),
    "assign": ("pdtlib.cli.assign:app", "Labs and exercises for a class: hand out, grade, collect."),
    "grade": ("pdtlib.cli.grade:grade", "Grade the answer to an exercise."),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point. Exit codes: 0 done, 1 failed, 2 a wrong call or a job that cannot work."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    name = words[0] if words else "--help"
    if name in ("--help", "-h", "help"):
        print(overview())
    elif name in ("--version", "-V"):
        print(f"pdt {pdtlib.__version__}")
    elif name in COMMANDS:
        run_command(name, words[1:])
    else:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        print(f"pdt: {name!r} is not a command{hint}\n\n{overview()}", file=sys.stderr)
        raise SystemExit(2)


def overview() -> str:
    """The list of commands."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name.ljust(width)}  {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: pdt COMMAND [ARGUMENTS]",
            "",
            "Plan, run and compare the training of one model on many GPUs.",
            "",
            *lines,
            "",
            "pdt COMMAND --help explains a command.",
        ]
    )


def run_command(name: str, words: list[str]) -> None:
    """Import one command and give it its arguments."""
    import typer

    module, _, function = COMMANDS[name][0].partition(":")
    app = getattr(importlib.import_module(module), function)
    if not isinstance(app, typer.Typer):
        command, app = (
            app,
            typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False),
        )
        app.command()(command)
    try:
        typer.main.get_command(app)(args=words, prog_name=f"pdt {name}")
    except SystemExit as stop:
        # Typer ends a wrong call by itself, with the text on stderr; --json promises it on stdout too.
        wrong = stop.__context__
        if "--json" in words and wrong is not None and hasattr(wrong, "format_message"):
            field = next(iter(getattr(getattr(wrong, "param", None), "opts", ())), "")
            problem = {"field": field, "message": wrong.format_message(), "valid": []}
            print(json.dumps({"problems": [problem]}, ensure_ascii=False))
        raise
