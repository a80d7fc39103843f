"""pdtlib beside what a user would pick instead: same model, same bytes, same machine, in turn.

    python benchmarks/peers.py [--short] [--rows zero3,tp] [--worlds 2,4] [--rounds 5] [--steps 3] [--out DIR]

Every contender of a row is a set of processes of its own that stays alive; a round lets each of them do a
few steps, one contender after the other, while the others sleep. So all of them meet the same moods of the
machine, and ratios are taken within a round. Losses of every step are compared with one process: a fast wrong
answer does not count. Bytes on the wire are read from the loopback interface, in a network namespace of its
own where the system allows one. Writes ``peers-cpu.json`` and ``.md`` (or ``peers-cuda``).
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
from pathlib import Path
from typing import Any

from peers_report import summarise, write
from peers_rows import Entry, Row, rows

ROOT = Path(__file__).parents[1]
INTERFACE_FILE = Path("/proc/net/dev")
WARM_UP = 3


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
    """Let the contenders of ``row`` train in turn; one record for each, :func:`summarise` compares them."""
    records: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        running = []
        try:
            for entry in row.entries:
                records[entry.name] = {"entry": entry, "rounds": [], "cpu_s": [], "error": None}
                one = Running(entry, row, device=device, folder=Path(folder))
                running.append(one)
                try:
                    one.ask(do="steps", count=WARM_UP)
                except RuntimeError as error:
                    records[entry.name]["error"] = str(error)
                    print(error, file=sys.stderr)
            alive = [one for one in running if records[one.entry.name]["error"] is None]
            for _ in range(rounds):
                for one in alive:
                    before = _wire_bytes()
                    answers = one.ask(do="steps", count=steps)
                    record = records[one.entry.name]
                    times = [
                        max(times) for times in zip(*(answer["times"] for answer in answers), strict=True)
                    ]
                    record["rounds"].append(statistics.median(times))
                    record["cpu_s"].append(sum(answer["cpu_s"] for answer in answers))
                    record["wire_bytes"] = (_wire_bytes() - before) / steps
            for one in alive:
                record = records[one.entry.name]
                record["python_calls"] = max(answer["python_calls"] for answer in one.ask(do="profile"))
                ends = one.ask(do="end")
                record["peak_bytes"] = max(answer["peak_bytes"] for answer in ends)
                record["state_bytes"] = max(answer["state_bytes"] for answer in ends)
                record["losses"] = [
                    statistics.fmean(loss for loss in losses if loss is not None)
                    for losses in zip(*(answer["losses"] for answer in ends), strict=True)
                ]
        finally:
            for one in running:
                one.end()
    return summarise(row, records)


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


def main() -> None:
    parser = argparse.ArgumentParser(description="pdtlib beside its peers, in turn")
    parser.add_argument("--short", action="store_true", help="2 ranks and few rounds: under 5 minutes")
    parser.add_argument("--rows", default="", help="kinds of rows, such as zero3,tp (default: all)")
    parser.add_argument("--worlds", default="", help="numbers of ranks, such as 2,4 (default: all)")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--steps", type=int, default=3, help="steps of a contender in a round")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args()
    own_network = options.device == "cpu" and in_own_network()
    kinds = options.rows.split(",") if options.rows else None
    worlds = [int(world) for world in options.worlds.split(",")] if options.worlds else None
    rounds = options.rounds or (3 if options.short else 5)
    records: list[dict[str, Any]] = []
    for row in rows(short=options.short):
        if (kinds and row.name.split(",")[0] not in kinds) or (worlds and row.world not in worlds):
            continue
        print(row.name, file=sys.stderr, flush=True)
        found = measure(row, rounds=rounds, steps=options.steps, device=options.device)
        records += found
        for record in found:
            print(f"  {record['name']:<44} {record.get('ratio_to_best_peer')}", file=sys.stderr, flush=True)
        write(options.out, records, device=options.device, own_network=own_network, rounds=rounds)


if __name__ == "__main__":
    main()
