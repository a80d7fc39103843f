"""What the page "How this book is checked" shows of measurements: computed or read, never typed.

* Predictions against published runs: ``benchmarks/published.py`` runs while the page is built.
* The reports of ``benchmarks/results``: what each compared, how it came out, and of which date and commit it
  is. A report that is not there is said not to have been measured.
* The table of peers of ``peers-cpu.json``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pdtlib.book.evidence_names import AXES, GROUPS, QUANTITIES
from pdtlib.book.tables import Table

ROOT = Path(__file__).parents[2]
RESULTS = Path("benchmarks/results")
PEERS = RESULTS / "peers-cpu.json"
NOT_MEASURED = "not measured in this copy"


def published(root: Path) -> tuple[Table, list[str]]:
    """Published measurements of ``facts.json`` against predictions, by source and quantity; what has none.

    Raises ``RuntimeError`` when the predictions do not run.
    """
    done = subprocess.run(
        [sys.executable, "benchmarks/published.py", "benchmarks/facts.json", "--json"],
        cwd=root,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"benchmarks/published.py failed:\n{done.stderr[-2000:]}")
    found = json.loads(done.stdout)
    rows = [
        (
            GROUPS.get(row["group"], row["group"]),
            QUANTITIES.get(row["metric"], row["metric"]),
            f"{row['n']}",
            _percent(row["mape"]),
            _percent(row["worst"], "+.1%"),
            "" if row["within_tolerance"] is None else _percent(row["within_tolerance"], ".0%"),
        )
        for row in found["groups"]
    ]
    header = ("source", "quantity", "values", "mean error", "worst", "within tolerance")
    table = Table("Predictions against published measurements", header, rows, text_columns=(1,))
    return table, list(found["missing"])


def peers(path: Path) -> list[Table]:
    """A table for every task that pdtlib and its peers have done; none where the file is absent."""
    if not path.exists():
        return []
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    header = (
        "program",
        "time, over one process",
        "over the best peer",
        "seconds a step",
        "spread",
        "peak memory",
        "bytes on the wire",
        "its own lines",
        "loss error",
    )
    return [
        Table(_task(task), header, [_peer(row) for row in rows if row["row"] == task])
        for task in dict.fromkeys(row["row"] for row in rows)
    ]


def _task(name: str) -> str:
    for begin, axes in AXES.items():
        if name.startswith(f"{begin}, "):
            return axes + name.removeprefix(begin)
    return name


def _peer(row: dict[str, Any]) -> tuple[str, ...]:
    name = f"{row['contender']} (pdtlib)" if row["pdtlib"] else row["contender"]
    if "error" in row:
        return (name, f"failed: {row['error']}", *[""] * 7)
    beside = row["ratio_to_best_peer"]
    return (
        name,
        f"{row['ratio_to_one_process']:.2f}",
        "" if beside is None else f"{beside:.2f}",
        f"{row['step_s']:.3f}",
        _percent(row["spread"]),
        f"{row['peak_bytes'] / 1e6:,.0f} MB",
        f"{row['wire_bytes'] / 1e6:,.0f} MB",
        f"{row['lines_of_code']:,}",
        f"{row['loss_error']:.1e}" + ("" if row["right"] else " (wrong)"),
    )


def peers_about(path: Path) -> str:
    """Where and when the peers were measured; that they were not, where the file is absent."""
    if not path.exists():
        return f"Peers: {NOT_MEASURED}."
    about = json.loads(path.read_text(encoding="utf-8"))["about"]
    cores, _, kind = about["processors"].partition(" × ")
    return (
        f"Measured on {about['date']} on {cores} cores ({kind}), which all ranks share, torch "
        f"{about['torch']}: medians of {about['rounds']} rounds, in which the programs take turns."
    )


def convergence(root: Path = ROOT) -> Table:
    """Held-out losses of ``async.json``: a row for each way of training, a column for a number of steps."""
    path = root / RESULTS / "async.json"
    if not path.exists():
        return Table(f"Asynchronous training: {NOT_MEASURED}", ("",), [])
    report = json.loads(path.read_text(encoding="utf-8"))
    steps = [point["steps"] for point in report["rows"][0]["curve"]]
    rows = []
    for row in report["rows"]:
        curve = row["curve"]
        old = f"{curve[-1]['staleness_mean']:.1f}" if "staleness_mean" in curve[-1] else ""
        rows.append((_way(row), *(f"{point['held_out_loss']:.3f}" for point in curve), old))
    setting = report["setting"]
    caption = (
        f"Loss of text that no training has seen, {setting['untrained']:.3f} before: {setting['params']:,} "
        f"parameters, {setting['workers']} processes"
    )
    return Table(caption, ("", *(f"after {n} steps" for n in steps), "staleness"), rows)


def _way(row: dict[str, Any]) -> str:
    if row["method"] == "server":
        bound = {None: "no bound", 0: "in step"}.get(row["bound"], f"at most {row['bound']} ahead")
        return f"parameter server, {bound}"
    name = {"synchronous": "synchronous", "local-sgd": "local SGD", "diloco": "DiLoCo"}[row["method"]]
    return name if row["every"] == 1 else f"{name}, a meeting every {row['every']} steps"


def reports(root: Path) -> Table:
    """What each report of ``benchmarks/results`` says, with its date and commit."""
    rows = []
    for name, (what, outcome) in REPORTS.items():
        path = root / RESULTS / name
        found = NOT_MEASURED
        if path.exists():
            found = outcome(json.loads(path.read_text(encoding="utf-8")))
        rows.append((name.removesuffix(".json"), what, found, *committed(root, RESULTS / name)))
    header = ("report", "what was compared", "outcome", "date", "commit")
    return Table("Reports of longer checks", header, rows, text_columns=(1, 2, 3, 4))


def committed(root: Path, path: Path) -> tuple[str, str]:
    """Date and short hash of the last commit of a file; empty where there is none."""
    log = subprocess.run(
        ["git", "log", "-1", "--format=%cs %h", "--", path.as_posix()],
        cwd=root,
        capture_output=True,
        text=True,
    )
    date, _, commit = log.stdout.strip().partition(" ")
    return date, commit


def _percent(share: float, spec: str = ".1%") -> str:
    return format(share, spec).replace("%", "\N{NO-BREAK SPACE}%")


def _matrix(report: dict[str, Any]) -> str:
    left = f", {len(report['not_run']):,} not run" if report["not_run"] else ""
    return (
        f"{report['passed']:,} of {report['run']:,} cases equal, of {report['valid_combinations']:,} "
        f"valid combinations{left}"
    )


def _mutants(report: dict[str, Any]) -> str:
    counts = report["counts"]
    said = ", ".join(f"{number:,} {verdict}" for verdict, number in sorted(counts.items()))
    return f"of {sum(counts.values()):,} removals: {said}"


def _dryruns(report: dict[str, Any]) -> str:
    rows = report["rows"]
    largest = max(row["world_size"] for row in rows)
    return f"{sum(row['equal'] for row in rows)} of {len(rows)} ranks equal, on up to {largest:,} GPUs"


def _faults(report: dict[str, Any]) -> str:
    runs = report["runs"]
    once = sum(run["samples_once"] for run in runs)
    recovered = sum(run["recovered"] for run in runs)
    return f"{recovered} of {len(runs)} runs recovered, {once} with every sample once"


def _layouts(report: dict[str, Any]) -> str:
    layouts = report["layouts"].values()
    worst = max(layout["largest_distance"] for layout in layouts)
    return f"{len(layouts)} layouts, losses at most {worst:.1e} apart (limit {report['limit']:.0e})"


def _bubbles(report: dict[str, Any]) -> str:
    rows = report["rows"]
    worst = max(rows, key=lambda row: abs(row["points"]))
    return f"{len(rows)} schedules, at most {abs(worst['points']):.1f} points off ({worst['schedule']})"


def _placement(report: dict[str, Any]) -> str:
    ratio = report["ratio"]
    over = max(row["wire_bytes"] / row["ledger_bytes"] for row in report["rows"]) - 1
    return (
        f"{ratio['measured']:.2f} times as long a step, predicted {ratio['predicted']:.2f}; "
        f"at most {_percent(over)} more bytes on the wire than in the ledger"
    )


def _asynchronous(report: dict[str, Any]) -> str:
    last: dict[str, list[float]] = {row["method"]: [] for row in report["rows"]}
    for row in report["rows"]:
        last[row["method"]].append(row["curve"][-1]["held_out_loss"])
    steps = report["rows"][0]["curve"][-1]["steps"]
    worst = max(max(losses) for losses in last.values())
    return f"held-out loss after {steps} steps: {last['synchronous'][0]:.2f}, at most {worst:.2f} otherwise"


def _schedules(report: dict[str, Any]) -> str:
    worst: dict[str, tuple[float, str]] = {}
    for row in report["rows"]:
        if row["ratio"] is not None:
            one = (row["ratio"], row["schedule"])
            worst[row["executor"]] = max(one, worst.get(row["executor"], one))
    said = ", ".join(f"{executor} {ratio:.3f} ({name})" for executor, (ratio, name) in worst.items())
    return f"a step over the simulator's, at most: {said}"


def _overlap(report: dict[str, Any]) -> str:
    said = ", ".join(f"{row['contender']} {_percent(row['hidden'], '.0%')}" for row in report["rows"])
    return f"hidden: {said}"


def _meters(report: dict[str, Any]) -> str:
    most = max(report["rows"], key=lambda row: row["share"])
    return f"of a step, at most: {_percent(most['share'], '.2%')} ({most['layout']})"


def _product(report: dict[str, Any]) -> str:
    starts = {row["command"]: row["wall_s"] for row in report["start_up"]}
    said = f"pdt predict --help {1e3 * starts['pdt predict --help']:.0f} ms"
    if pages := [page for page in report.get("pages", ()) if page["explorers"]]:
        weight = max(page["loaded_gzip_bytes"] for page in pages)
        wait = max(page["interactive_s"] for page in pages)
        said += f"; a page with explorers loads {weight / 1e6:.1f} MB and answers after {wait:.1f} s, at most"
    if moves := report.get("moves", ()):
        kinds = ("first_ms", "later_from_table_ms", "later_from_python_ms")
        shown = ("median", "figure_median")
        slowest = [
            " and ".join(
                f"{max((row[kind][part] for row in moves if row[kind]), default=0.0):.0f}" for part in shown
            )
            for kind in kinds
        ]
        first, table, python = slowest
        said += "; milliseconds to new numbers and to the new figure, of the slowest explorer: "
        said += f"first move {first}, later ones {table}, computed live {python}"
    return said


REPORTS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "matrix.json": ("models, layouts and settings trained, against one process", _matrix),
    "mutants.json": ("one message or division of the engine removed: does a test fail?", _mutants),
    "layouts.json": ("the loss curve of one job in several layouts", _layouts),
    "dryruns.json": ("ranks of the article's layouts on fake tensors, against the plan", _dryruns),
    "faults.json": ("runs with a fault planted, against undisturbed ones", _faults),
    "placement.json": ("tensor parallelism across nodes and inside, against the plan", _placement),
    "async.json": ("asynchronous and local-update training, beside synchronous training", _asynchronous),
    "bubbles.json": ("bubbles of sleeping stages, against the simulator", _bubbles),
    "schedules.json": ("executors on sleeping stages, against the simulator", _schedules),
    "overlap.json": ("communication that data parallelism hides behind sleeping computation", _overlap),
    "meters.json": ("what a run's meters take that are always on", _meters),
    "product.json": ("what the command line and the pages cost", _product),
}
