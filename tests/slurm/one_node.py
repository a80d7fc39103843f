"""A Slurm of one node on this machine, from the system's packages, with two partitions.

Jobs in ``urgent`` preempt those in ``patient``, which get SIGTERM first and are queued again. Two "GPUs" are
device files, so that jobs can ask for GPUs. Everything lies in one folder, nothing of the system's own
configuration is read or changed, and the daemons end with the ``with`` block.
"""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

DAEMONS = ("munged", "slurmctld", "slurmd")
GRACE_S = 60
ENDED = (
    "COMPLETED",
    "FAILED",
    "TIMEOUT",
    "CANCELLED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "BOOT_FAIL",
    "PREEMPTED",
)
CONFIGURATION = """
ClusterName=book
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MinJobAge=3600
ReturnToService=2
GresTypes=gpu
NodeName=localhost NodeHostname={host} NodeAddr=127.0.0.1 CPUs={cpus} Gres=gpu:2
PartitionName=patient Nodes=localhost Default=YES PriorityTier=1 GraceTime={grace_s}
PartitionName=urgent Nodes=localhost PriorityTier=2 PreemptMode=OFF
"""


def missing() -> list[str]:
    """The programs that the system lacks."""
    return [name for name in (*DAEMONS, "sbatch", "srun", "scontrol") if program(name) is None]


def program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


class Slurm:
    """The commands of a user; ``env`` leads them, and whatever they start, to this Slurm."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def call(self, *words: str) -> str:
        done = subprocess.run(words, env=self.env, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr or done.stdout}")
        return done.stdout

    def submit(self, *words: str) -> str:
        """The new job's number."""
        return self.call("sbatch", "--parsable", *words).strip()

    def job(self, number: str) -> dict[str, str]:
        """What Slurm says about a job: JobState, ExitCode, Restarts and more."""
        pairs = self.call("scontrol", "show", "job", "--oneliner", number).split()
        return dict(pair.split("=", 1) for pair in pairs if "=" in pair)

    def ended(self, number: str) -> bool:
        return self.job(number)["JobState"] in ENDED

    def idle(self) -> bool:
        """Does the node wait for jobs?"""
        return self.call("sinfo", "--noheader", "--format", "%t").split() == ["idle"]

    def logs(self) -> str:
        """The ends of the daemons' logs, for the message of a failed test."""
        return "\n".join(
            f"{name}: {line}"
            for name in DAEMONS
            for line in (self.folder / f"{name}.log").read_text(errors="replace").splitlines()[-15:]
        )


def wait_for(condition: Callable[[], bool], *, timeout_s: float, what: str) -> None:
    stop = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > stop:
            raise TimeoutError(f"{what}: not within {timeout_s:g} s")
        time.sleep(0.5)


@contextmanager
def one_node(folder: Path) -> Iterator[Slurm]:
    """Start the daemons, wait until the node takes jobs, and end them all whatever happens."""
    slurm = Slurm(folder)
    (folder / "slurm.conf").write_text(
        CONFIGURATION.format(
            host=socket.gethostname(),
            user=getpass.getuser(),
            ports=_free_ports(2),
            folder=folder,
            cpus=os.cpu_count(),
            grace_s=GRACE_S,
        )
    )
    (folder / "gres.conf").write_text("NodeName=localhost Name=gpu File=/dev/null,/dev/zero\n")
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    files = {"socket": "munge.socket", "key-file": "munge.key", "log-file": "munged.log"}
    files |= {"pid-file": "munged.pid", "seed-file": "munged.seed"}
    munge = [f"--{option}={folder / name}" for option, name in files.items()]
    try:
        slurm.call(str(program("munged")), "--force", *munge)
        slurm.call(str(program("slurmctld")))
        slurm.call(str(program("slurmd")), "-N", "localhost")
        wait_for(slurm.idle, timeout_s=60, what="the node's start")
        yield slurm
    finally:
        with suppress(RuntimeError, TimeoutError):
            slurm.call("scancel", "--user", getpass.getuser())
            wait_for(lambda: not slurm.call("squeue", "--noheader"), timeout_s=60, what="the end of the jobs")
        for name in reversed(DAEMONS):
            _end(folder / f"{name}.pid")


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _end(pid_file: Path) -> None:
    """SIGTERM to a daemon; SIGKILL if that is not enough."""
    if not pid_file.exists():
        return
    number = int(pid_file.read_text())
    with suppress(ProcessLookupError):
        os.kill(number, signal.SIGTERM)
        for _ in range(100):
            time.sleep(0.1)
            os.kill(number, 0)
        os.kill(number, signal.SIGKILL)
