"""What using the book and `pdt` costs: start-up, prediction, planner, simulator, pages, builds.

    python benchmarks/product.py [--site _build/html] [--build] [--out FILE]

* **Start-up**: ``pdt`` commands as processes, in turn with an interpreter that does nothing.
* **Planner, prediction, simulator**: seconds beside the size of their input, from small to large, and the
  power with which they grow, the slope of a straight line through the logarithms.
* **Site** (when it is built): bytes of every page and of all that it loads, as sent with gzip, and in
  headless Chromium the time until the page is loaded and until all its explorers react; how soon explorers
  answer (:mod:`moves`).
* **Builds** (``--build``, minutes): the book from nothing, again with nothing changed, and after an edit of
  one chapter's text, each as ``make book`` runs it, in a copy of the working tree.

Times are medians, of rounds in which everything is measured in turn. Writes ``results/product.json``.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import gzip
import http.server
import itertools
import json
import math
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from moves import empty_page, explorer_moves

from pdtlib.plan.job import from_dict
from pdtlib.plan.planner import plan
from pdtlib.plan.predict import predict
from pdtlib.plan.schedule import build, simulate

ROOT = Path(__file__).parents[1]
JOB = {
    "model": {"preset": "llama3-70b"},
    "train": {"global_batch": 2048, "micro_batch": 1, "precision": "bf16"},
}
COMMANDS = {
    "python, nothing": [sys.executable, "-c", "pass"],
    "pdt --help": ["--help"],
    "pdt predict --help": ["predict", "--help"],
    "pdt predict JOB": ["predict", "JOB", "--json"],
    "pdt schedule 1f1b": ["schedule", "1f1b", "--stages", "8", "--microbatches", "32", "--json"],
}
ROUNDS = 5


def start_up(folder: Path) -> list[dict[str, Any]]:
    """Wall and processor seconds of every command, and the modules it imports."""
    job = folder / "job.json"
    job.write_text(
        json.dumps(JOB | {"parallel": {"tp": 8, "pp": 4, "dp": 4}, "hardware": {"gpu": "H100-SXM5"}})
    )
    pdt = [str(Path(sys.executable).with_name("pdt"))]
    walls: dict[str, list[float]] = {name: [] for name in COMMANDS}
    cpus: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(ROUNDS):
        for name, words in COMMANDS.items():
            command = words if words[0] == sys.executable else [*pdt, *words]
            command = [str(job) if word == "JOB" else word for word in command]
            before, began = _children_cpu_s(), time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            walls[name].append(time.perf_counter() - began)
            cpus[name].append(_children_cpu_s() - before)
    return [
        {"command": name, "wall_s": statistics.median(walls[name]), "cpu_s": statistics.median(cpus[name])}
        for name in COMMANDS
    ]


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def growth(points: Sequence[tuple[int, Callable[[], Any]]]) -> dict[str, Any]:
    """Seconds of every point's work by its size; ``power`` is how they grow with it.

    The first call of each is not counted: functions that remember their answers are measured as they are used
    the first time by new arguments, so every point must be given other ones.
    """
    rows = []
    for size, work in points:
        began = time.process_time()
        work()
        rows.append({"size": size, "cpu_s": time.process_time() - began})
    return {"points": rows, "power": slope([(row["size"], row["cpu_s"]) for row in rows])}


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the least-squares line through the logarithms."""
    logs = [(math.log(x), math.log(max(y, 1e-9))) for x, y in points]
    mean_x, mean_y = (statistics.fmean(values) for values in zip(*logs, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _ in logs)
    return sum((x - mean_x) * (y - mean_y) for x, y in logs) / spread


def computations() -> dict[str, Any]:
    """Planner by GPUs, prediction by layers, simulator by actions; processor seconds, in this process."""
    job = from_dict(JOB | {"hardware": {"gpu": "H100-SXM5"}})

    def planner(gpus: int) -> Callable[[], Any]:
        return lambda: plan(job, num_gpus=gpus, top=3)

    def prediction(layers: int) -> Callable[[], Any]:
        model = {"layers": layers, "hidden": 4096, "heads": 32, "vocab": 32000, "seq": 4096}
        table = {
            "model": model,
            "parallel": {"pp": 4},
            "train": JOB["train"],
            "hardware": {"gpu": "H100-SXM5"},
        }
        return lambda: predict(table)

    def simulator(micro_batches: int) -> tuple[int, Callable[[], Any]]:
        table = build("1f1b", stages=8, microbatches=micro_batches)
        return sum(map(len, table.programs)), lambda: simulate(table)

    return {
        "planner, GPUs": growth([(gpus, planner(gpus)) for gpus in (64, 512, 4096, 32768)]),
        "prediction, layers": growth([(layers, prediction(layers)) for layers in (8, 32, 128)]),
        "simulator, actions": growth([simulator(count) for count in (32, 128, 512, 2048)]),
    }


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A file server that says nothing."""

    def log_message(self, *args: Any) -> None:
        """Keep quiet."""


def pages_of(site: Path) -> list[str]:
    """All pages of the book."""
    own = [path.relative_to(site) for path in site.rglob("*.html")]
    return sorted(str(path) for path in own if path.parts[0] not in ("_static", "_sources", "vendor"))


def of_site(site: Path) -> dict[str, list[dict[str, Any]]]:
    """``pages``: weight of every page and when it is there, each in a browser that has nothing in its cache;
    ``moves`` of their explorers."""
    from playwright.sync_api import sync_playwright

    from pdtlib.book import browser as browsers

    handler = functools.partial(Quiet, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}/"
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=str(browsers.find()), headless=True, args=list(browsers.FLAGS)
            )
            pages = [_page(browser, address, site, path) for path in pages_of(site)]
            found = [explorer_moves(browser, address, page["page"]) for page in pages if page["explorers"]]
            return {"pages": pages, "moves": list(itertools.chain.from_iterable(found))}
    finally:
        server.shutdown()


def _page(browser: Any, address: str, site: Path, path: str) -> dict[str, Any]:
    context, page = empty_page(browser)
    asked: set[str] = set()
    page.on("request", lambda request: asked.add(urlsplit(request.url).path.lstrip("/")))
    began = time.perf_counter()
    page.goto(address + path, wait_until="load")
    loaded_s = time.perf_counter() - began
    explorers = page.locator("[data-explorer]").count()
    if explorers:
        page.wait_for_function(
            "n => document.querySelectorAll('[data-explorer][data-alive]').length === n", arg=explorers
        )
    interactive_s = time.perf_counter() - began
    page.wait_for_load_state("networkidle")
    files = [site / name for name in asked if (site / name).is_file()]
    context.close()
    return {
        "page": path,
        "html_bytes": (site / path).stat().st_size,
        "loaded_bytes": sum(file.stat().st_size for file in files),
        "loaded_gzip_bytes": sum(len(gzip.compress(file.read_bytes(), 6)) for file in files),
        "explorers": explorers,
        "loaded_s": loaded_s,
        "interactive_s": interactive_s,
    }


def builds(folder: Path) -> list[dict[str, Any]]:
    """Seconds of three builds of the book in a copy of the files that git knows."""
    copy = folder / "book"
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    for name in filter(None, names.split("\0")):
        target = copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    (copy / "pdtlib/book/front/node_modules").symlink_to(ROOT / "pdtlib/book/front/node_modules")
    command = [str(Path(sys.executable).with_name("jupyter-book")), "build", ".", "--keep-going"]
    rows = []
    for kind in ("from nothing", "nothing changed", "one chapter's text changed"):
        if kind.startswith("one"):
            chapter = sorted((copy / "chapters").glob("*.ipynb"))[0]
            chapter.write_text(chapter.read_text().replace("## ", "##  ", 1))
        began = time.perf_counter()
        subprocess.run(
            command, cwd=copy, check=True, capture_output=True, env=os.environ | {"PYTHONPATH": str(copy)}
        )
        rows.append({"build": kind, "wall_s": time.perf_counter() - began})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="What using the book and pdt costs")
    parser.add_argument("--site", type=Path, default=ROOT / "_build" / "html")
    parser.add_argument("--build", action="store_true", help="also build the book three times (10 minutes)")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "product.json")
    options = parser.parse_args()
    report: dict[str, Any] = {
        "about": {
            "date": datetime.date.today().isoformat(),
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "load_at_start": os.getloadavg()[0],
        }
    }
    with tempfile.TemporaryDirectory() as folder:
        report["start_up"] = start_up(Path(folder))
        report["computations"] = computations()
        if (options.site / "index.html").exists():
            report |= of_site(options.site)
        else:
            print(f"{options.site} is not built: pages are left out", file=sys.stderr)
        if options.build:
            report["builds"] = builds(Path(folder))
    if options.out.exists() and not options.build:  # builds take minutes: the last measured ones stay, dated
        earlier = json.loads(options.out.read_text())
        if "builds" in earlier:
            report["builds"] = earlier["builds"]
            report["builds_about"] = earlier.get("builds_about", earlier["about"])
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    print(options.out)


if __name__ == "__main__":
    main()
