"""pdtlib beside what a user would pick instead: same model, same bytes, same machine, in turn.

    python benchmarks/peers.py [--short] [--add] [--rows zero3,tp] [--worlds 2,4] [--minutes 38] [--out DIR]

Every contender of a row is a set of processes of its own that stays alive; a round lets each of them do a
few steps, one contender after the other, while the others sleep. So all of them meet the same moods of the
machine, and ratios are taken within a round. Losses of every step are compared with one process: a fast wrong
answer does not count. Bytes on the wire are read from the loopback interface, in a network namespace of its
own where the system allows one. Writes ``peers-cpu.json`` and ``.md`` (or ``peers-cuda``). With ``--add`` the
rows of that report stay: it goes on with those that it lacks, or measures the chosen ones again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from peers_report import summarise, write
from peers_rows import Entry, Row, rows
from peers_task import MODELS

ROOT = Path(__file__).parents[1]
INTERFACE_FILE = Path("/proc/net/dev")
WARM_UP = 2


class Running:
    """The processes of one contender."""

    def __init__(self, entry: Entry, row: Row, *, device: str, folder: Path) -> None:
        self.entry = entry
        self.world = entry.world or row.world
        python = ROOT / entry.environment / "bin" / "python"
        self.processes: list[subprocess.Popen[str]] = []
        self.replies = []
        meeting = folder / f"{len(list(folder.iterdir()))}-{entry.function}"
        meeting.with_suffix(".log").touch()
        for rank in range(self.world):
            spec = {
                "contender": entry.function,
                "options": entry.options,
                "model": row.model,
                "precision": row.precision,
                "rank": rank,
                "world": self.world,
                "threads": entry.threads,
                "device": device,
                "meeting": str(meeting),
            }
            read, reply = os.pipe()
            command = [str(python if python.exists() else sys.executable), "-W", "ignore"]
            command += [str(Path(__file__).with_name("peers_worker.py")), json.dumps(spec), str(reply)]
            with meeting.with_suffix(".log").open("a") as log:
                self.processes.append(
                    subprocess.Popen(
                        command,
                        stdin=subprocess.PIPE,
                        stdout=log,
                        stderr=log,
                        text=True,
                        pass_fds=(reply,),
                        env=os.environ | {"OMP_NUM_THREADS": str(entry.threads), "PYTHONPATH": str(ROOT)},
                    )
                )
            os.close(reply)
            self.replies.append(os.fdopen(read))
        self.log = meeting.with_suffix(".log")

    def ask(self, **word: Any) -> list[dict[str, Any]]:
        """Give all ranks a word and return their answers. Raises RuntimeError when a rank has ended."""
        for process in self.processes:
            assert process.stdin is not None
            try:
                print(json.dumps(word), file=process.stdin, flush=True)
            except BrokenPipeError:
                break
        answers = [reply.readline() for reply in self.replies]
        if not all(answers):
            raise RuntimeError(f"{self.entry.name}: a rank ended:\n{self.log.read_text()[-3000:]}")
        return [json.loads(answer) for answer in answers]

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def measure(row: Row, *, rounds: int, steps: int, device: str) -> list[dict[str, Any]]:
    """Let the contenders of ``row`` train in turn; one record for each, :func:`summarise` compares them.

    A contender that ends early is told with its error and stands beside nobody.
    """
    records: dict[str, dict[str, Any]] = {}
    running: list[Running] = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for entry in row.entries:
                records[entry.name] = {"entry": entry, "rounds": [], "cpu_s": [], "error": None}
                running.append(Running(entry, row, device=device, folder=Path(folder)))
                _ask(running[-1], records, do="steps", count=WARM_UP)
            for _ in range(rounds):
                for one in running:
                    _time(one, records, steps)
            for one in running:
                _close(one, records)
        finally:
            for one in running:
                one.end()
    return summarise(row, records)


def _ask(one: Running, records: dict[str, dict[str, Any]], **word: Any) -> list[dict[str, Any]]:
    """The answers of all ranks; none from a contender that has failed, now or before."""
    record = records[one.entry.name]
    if record["error"] is None:
        try:
            return one.ask(**word)
        except RuntimeError as error:
            record["error"] = str(error)
            print(error, file=sys.stderr)
            one.end()
    return []


def _time(one: Running, records: dict[str, dict[str, Any]], steps: int) -> None:
    """One round: some steps, each as long as that of its slowest rank."""
    before = _wire_bytes()
    answers = _ask(one, records, do="steps", count=steps)
    if answers:
        record = records[one.entry.name]
        times = [max(times) for times in zip(*(answer["times"] for answer in answers), strict=True)]
        record["rounds"].append(statistics.median(times))
        record["cpu_s"].append(sum(answer["cpu_s"] for answer in answers))
        record["wire_bytes"] = (_wire_bytes() - before) / steps


def _close(one: Running, records: dict[str, dict[str, Any]]) -> None:
    """What a contender is asked once: Python's calls, memory, losses."""
    record = records[one.entry.name]
    profiles = _ask(one, records, do="profile")
    ends = _ask(one, records, do="end")
    if ends:
        busiest = max(profiles, key=lambda answer: answer["python_calls"])
        record["python_calls"] = busiest["python_calls"]
        record["functions"] = {name: n for answer in profiles for name, n in answer["lines"].items()}
        record["peak_bytes"] = max(answer["peak_bytes"] for answer in ends)
        record["state_bytes"] = max(answer["state_bytes"] for answer in ends)
        record["losses"] = [
            statistics.fmean(loss for loss in losses if loss is not None)
            for losses in zip(*(answer["losses"] for answer in ends), strict=True)
        ]


def _wire_bytes() -> int:
    """Bytes that the loopback interface has carried in this network namespace."""
    for line in INTERFACE_FILE.read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == "lo":
            return int(counters.split()[8])
    return 0


def in_own_network() -> bool:
    """Start this program again in a network namespace of its own, if the system allows one.

    Its loopback interface then carries our bytes alone. Returns whether this is such a namespace.
    """
    if os.environ.get("PEERS_OWN_NETWORK"):
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        return True
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    unshare = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "--map-root-user"]
    if subprocess.run([*unshare, "true"], capture_output=True).returncode:
        return False
    os.environ["PEERS_OWN_NETWORK"] = "1"
    return os.execvp("unshare", [*unshare, sys.executable, *sys.argv])


def earlier(out: Path, *, device: str) -> dict[str, Any]:
    """The report in ``out``; empty if there is none."""
    path = out / f"peers-{device}.json"
    report: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description="pdtlib beside its peers, in turn")
    parser.add_argument("--short", action="store_true", help="fewer contenders and rounds: under 5 minutes")
    parser.add_argument("--add", action="store_true", help="keep the rows of the report that is there")
    parser.add_argument("--rows", default="", help="kinds of rows, such as zero3,tp (default: all)")
    parser.add_argument("--worlds", default="", help="numbers of ranks, such as 2,4 (default: all)")
    parser.add_argument(
        "--model", default="", choices=("", *MODELS), help="of all rows (default: each row's)"
    )
    parser.add_argument("--rounds", type=int, default=0, help="default: 5, in the short form 4")
    parser.add_argument("--steps", type=int, default=0, help="in a round; default: 2, in the short form 1")
    parser.add_argument("--minutes", type=float, default=0, help="no row begins that would end later")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args()
    about = {
        "short": options.short,
        "rounds": options.rounds or (4 if options.short else 5),
        "steps_in_a_round": options.steps or (1 if options.short else 2),
        "load_at_start": os.getloadavg()[0],
        "wire_counted_alone": options.device == "cpu" and in_own_network(),
    }
    minutes = options.minutes or (4.8 if options.short else 38)
    kinds = options.rows.split(",") if options.rows else None
    worlds = [int(world) for world in options.worlds.split(",")] if options.worlds else None
    began, longest = time.monotonic(), 0.0
    report = earlier(options.out, device=options.device) if options.add else {}
    records: list[dict[str, Any]] = report.get("rows", [])
    about["runs"] = report.get("about", {}).get("runs", 0) + 1
    there = list(dict.fromkeys(record["row"] for record in records))
    offered = list(rows(short=options.short, model=options.model))
    order = [*(row.name for row in offered), *there]
    for row in offered:
        chosen = (not kinds or row.name.split(",")[0] in kinds) and (not worlds or row.world in worlds)
        if not chosen or (row.name in there and not kinds and not worlds):
            continue
        at = time.monotonic()
        if at - began + longest > 60 * minutes:
            continue
        print(f"{row.name} ({at - began:.0f} s)", file=sys.stderr, flush=True)
        found = measure(row, rounds=about["rounds"], steps=about["steps_in_a_round"], device=options.device)
        longest = max(longest, time.monotonic() - at)
        records = [record for record in records if record["row"] != row.name] + found
        records.sort(key=lambda record: order.index(record["row"]))  # stable: contenders keep their order
        for record in found:
            print(f"  {record['name']:<60} {record.get('ratio_to_best_peer')}", file=sys.stderr, flush=True)
        measured = {record["row"] for record in records}
        left_out = [name for name in order if name not in measured]
        write(options.out, records, device=options.device, about=about, left_out=left_out)


if __name__ == "__main__":
    main()
