"""Remove each message and each division of the engine, one at a time; a test must fail: ``make mutants``.

    python tests/engine/mutants.py [--only NAME ...] [--again] [--out benchmarks/results/mutants.json]

Works on a copy of the last commit. :mod:`mutant_sites` finds what to remove, :mod:`mutants_table` has the
tests for each module, which run until the first fails: that one killed the mutant, if it passes without it.
A test that hangs fails by the timeout of its process group; where the whole run does, ``timeout`` killed it.
Mutants that the report has, of a module that is as it was, are not run again.

What time did not suffice for is listed as not run. Exits with 1 where a mutant survived that is not known to
be equivalent.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from mutant_sites import Site, every_site
from mutants_table import EQUIVALENT, excluded, tests_of

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "benchmarks/results/mutants.json"
LIMIT_S = 600.0


def copy_of_commit(folder: Path) -> str:
    """Put the last commit's files into ``folder``, and what mutants call; returns the commit."""
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
    files = subprocess.Popen(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-C", str(folder)], stdin=files.stdout, check=True)
    if files.wait():
        raise SystemExit(f"git archive {commit} failed")
    shutil.copy(folder / "tests/engine/removed_calls.py", folder / "pdtlib/engine/removed.py")
    return commit


def first_failure(root: Path, tests: list[str]) -> tuple[str, str, str]:
    """What became of ``tests`` in ``root``: passed, failed, timeout or error; the first failing test; why.

    They run in a fork of this process, which has imported torch but nothing of pdtlib, and so do the ranks
    that they start: of a short test, most of the time goes into importing torch.
    """
    with tempfile.NamedTemporaryFile("r+", suffix=".log", errors="replace") as log:
        process = multiprocessing.get_context("fork").Process(
            target=_run_pytest, args=(root, tests, log.name)
        )
        process.start()
        process.join(LIMIT_S)
        if process.is_alive():
            os.killpg(process.pid, signal.SIGKILL)
            process.join()
            return "timeout", "timeout", f"no end within {LIMIT_S:g} s"
        output = log.read()
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - (.*))?$", output, flags=re.MULTILINE)
    if process.exitcode == pytest.ExitCode.OK:
        return "passed", "", ""
    if process.exitcode == pytest.ExitCode.TESTS_FAILED and failed:
        return "failed", failed[1], (failed[2] or "")[:120]
    return "error", "", output[-2000:]


def _run_pytest(root: Path, tests: list[str], log: str) -> None:
    os.setsid()
    os.chdir(root)
    for stream in (1, 2):
        os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND), stream)
    os.environ["PYTHONPATH"] = str(root)  # of processes that tests start anew
    sys.path.insert(0, str(root))
    sys.dont_write_bytecode = True  # two versions of a file may have one time and one size
    context = multiprocessing.get_context
    multiprocessing.get_context = lambda method=None: context("fork")
    sys.exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--tb=line", *tests]))


def verdict_on(site: Site, root: Path, sound: set[str]) -> dict[str, Any]:
    """Run the tests of a mutant in ``root``, which is as before when it returns.

    ``sound`` are tests known to pass without any mutant, to which this one's is added.
    """
    path, began = root / site.module, time.monotonic()
    source = path.read_bytes()
    path.write_bytes(site.mutated(source))
    try:
        outcome, by, why = first_failure(root, tests_of(site.module))
    finally:
        path.write_bytes(source)
    if outcome == "error":
        raise SystemExit(f"{site.name}: its tests could not be run:\n{why}")
    blamed = {"failed": [by], "timeout": tests_of(site.module)}.get(outcome, [])
    if not sound.issuperset(blamed):
        unharmed, _, reason = first_failure(root, blamed)
        if unharmed != "passed":
            raise SystemExit(f"{blamed} fail without any mutant: {unharmed} {reason}")
        sound.update(blamed)
    found = {"verdict": "survived"} if outcome == "passed" else {"verdict": "killed", "by": by, "why": why}
    if outcome == "passed" and site.name in EQUIVALENT:
        found = {"verdict": "equivalent", "why": EQUIVALENT[site.name]}
    return {"removed": site.kind, **found, "seconds": round(time.monotonic() - began, 1)}


def digest(root: Path, module: str) -> str:
    """Says whether a module is the one that a mutant was made of."""
    return hashlib.sha256((root / module).read_bytes()).hexdigest()[:12]


def to_run(root: Path, report: dict[str, Any], options: argparse.Namespace) -> list[Site]:
    """The mutants that are wanted and that the report does not have."""
    sites = [site for site in every_site(root) if excluded(site.name) is None]
    if options.only:
        sites = [site for site in sites if any(only in site.name for only in options.only)]
    known = {
        name
        for name, found in report.items()
        if found["module"] == digest(root, name.partition("::")[0]) and found["verdict"] != "survived"
    }
    return [site for site in sites if options.again or site.name not in known]


def write(path: Path, mutants: dict[str, Any], root: Path) -> None:
    """Write the report: of the engine's present places alone."""
    sites = every_site(root)
    wanted = [site.name for site in sites if excluded(site.name) is None]
    present = {name: mutants[name] for name in wanted if name in mutants}
    report = {
        "what": "each message and division of pdtlib/engine removed alone, and the first test that fails",
        "counts": dict(Counter(found["verdict"] for found in present.values())),
        "seconds": round(sum(found["seconds"] for found in present.values())),
        "not_run": [name for name in wanted if name not in present],
        "excluded": {site.name: excluded(site.name) for site in sites if excluded(site.name)},
        "mutants": present,
    }
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="mutants whose names contain this, such as clip.py"
    )
    parser.add_argument("--again", action="store_true", help="also what the report has already")
    parser.add_argument("--out", type=Path, default=REPORT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "300"}
    mutants = json.loads(options.out.read_text(encoding="utf-8"))["mutants"] if options.out.exists() else {}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        root = Path(folder)
        commit = copy_of_commit(root)
        sites = to_run(root, mutants, options)
        sound: set[str] = set()
        for number, site in enumerate(sites, 1):
            found = verdict_on(site, root, sound)
            mutants[site.name] = {**found, "commit": commit, "module": digest(root, site.module)}
            print(f"{number}/{len(sites)} {found['verdict']} {site.name} {found.get('by', '')}", flush=True)
            write(options.out, mutants, root)
    survived = [name for name, found in mutants.items() if found["verdict"] == "survived"]
    print("\n".join(["survivors:", *survived]) if survived else "no mutant survived")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
