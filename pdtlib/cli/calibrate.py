"""``pdt calibrate``: measure this machine and write the hardware file that predictions on it use."""

import importlib.util
import json
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from pdtlib.plan.job import hardware_toml, to_plain
from pdtlib.plan.spec import Hardware
from pdtlib.plan.units import rate_text


def calibrate(
    out: Annotated[Path, typer.Option(help="The file to write.")] = Path("hardware.toml"),
    ranks: Annotated[
        int | None, typer.Option(help="Processes at most; default: the GPUs, or the cores (8 at most).")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    short: Annotated[bool, typer.Option("--short", help="Few sizes, in seconds: rough numbers.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print the measurements as JSON.")] = False,
) -> None:
    """Measure products, memory, optimizer and collectives here; jobs use them by hardware.cluster = "OUT".

    Nothing else should run meanwhile. Exit codes: 0 done, 1 the file cannot be written, 2 a wrong call.
    """
    if importlib.util.find_spec("torch") is None:
        message = "measuring needs PyTorch; install it with: pip install 'pdtlib[engine]'"
        _refuse("", message, as_json=json_, code=2)
    from pdtlib.engine.calibration import calibrate as measure

    if out.suffix != ".toml":
        _refuse("--out", f"{out} must end in .toml, as jobs know hardware files by it", as_json=json_, code=2)
    if not out.parent.is_dir():
        message = f"cannot write {out}: there is no folder {out.parent}"
        _refuse("--out", message, as_json=json_, code=1)
    try:
        hardware = measure(ranks=ranks, short=short, device=device)
    except ValueError as error:
        _refuse("", str(error), as_json=json_, code=2)
    try:
        out.write_text(hardware_toml(hardware, name=out.name), encoding="utf-8")
    except OSError as error:
        _refuse("--out", f"cannot write {out}: {error.strerror}", as_json=json_, code=1)
    if json_:
        typer.echo(json.dumps({"problems": [], "file": str(out), "hardware": to_plain(hardware)}))
    else:
        _show(hardware, out)


def _refuse(field: str, message: str, *, as_json: bool, code: int) -> NoReturn:
    typer.echo(f"pdt calibrate: {field + ': ' if field else ''}{message}", err=True)
    if as_json:
        typer.echo(json.dumps({"problems": [{"field": field, "message": message, "valid": []}]}))
    raise typer.Exit(code)


def _show(hardware: Hardware, out: Path) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    measured = hardware.measured
    assert measured is not None
    console = Console()
    style: dict[str, Any] = {"box": box.SIMPLE, "padding": (0, 1, 0, 0), "title_justify": "left"}
    console.print(f"{measured.host}, {measured.date}")
    table = Table("ranks", "precision", "product", "attention", "memory", "optimizer", "passes", **style)
    table.title = "What each rank reaches while all of them work"
    for row in measured.compute:
        table.add_row(
            str(row.ranks),
            row.precision,
            rate_text(max(rate for _, rate in row.matmul), "FLOP"),
            rate_text(row.attention_flops_per_s, "FLOP"),
            rate_text(row.memory_bytes_per_s, "B"),
            rate_text(row.optimizer_bytes_per_s, "B"),
            f"{row.passes:.2f}",
        )
    console.print(table)
    if measured.collectives:
        links = Table("collective", "ranks", "latency", "rate", **style)
        for link in measured.collectives:
            latency = f"{link.start_s * 1e6:,.0f} us"
            links.add_row(link.collective, str(link.ranks), latency, rate_text(link.bytes_per_s, "B"))
        console.print(links)
    console.print(f'{out} written; a job beside it says: [hardware] cluster = "{out.name}"', markup=False)
