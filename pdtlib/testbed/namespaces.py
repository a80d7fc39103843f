"""Processes that hold namespaces: the switch, and below it one a node.

Each holder is process 1 of a process namespace, so killing it ends, at once and without asking, everything
that runs inside, which is what a power cut does to a node. The nodes' holders live in the switch's process
namespace: the death of that one process takes the whole testbed with it, links and files in memory included.
Nothing is named in the machine's own network, so nothing can be left behind there.

Made with ``unshare`` and entered with ``nsenter`` (util-linux, on every Linux).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

TOOLS = {
    # command: the package that has it
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "hostname": "hostname",
    "ip": "iproute2",
    "tc": "iproute2",
}

HOLD = 'read -r pid rest < /proc/self/stat; echo "$pid"; exec sleep infinity > /dev/null'
"""Tells the holder's number as the whole machine sees it, then does nothing for ever."""

NODE = (
    'hostname "$0" && mount --bind "$1" /etc/hosts && mount -t tmpfs -o size=25% tmpfs /dev/shm && '
    "ip link set lo up && "
)
"""A node has a loopback and shared memory of its own, which are lost with it, and knows the others' names."""


class Impossible(RuntimeError):
    """This machine cannot make a testbed; the message says why and what would help."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A process that keeps namespaces alive. ``started`` tells it from a later process of the same number."""

    pid: int
    started: int
    user: bool

    @property
    def alive(self) -> bool:
        return _start_time(self.pid) == self.started

    def inside(self, *command: str, cwd: Path | None = None) -> list[str]:
        """The command line that runs ``command`` as a process of this holder's namespaces.

        When the process that runs this command line ends, ``command`` gets SIGTERM.
        """
        entered = [*self.enter(), "--net", "--uts", "--mount", "--pid"]
        in_folder = ["sh", "-c", 'cd "$0" && exec "$@"', str((cwd or Path.cwd()).absolute())]
        return [*entered, "setpriv", "--pdeathsig", "TERM", "--", *in_folder, *command]

    def network(self, *command: str) -> str:
        """Run a command that sets or reads the holder's network. Raises :class:`Impossible` if it fails."""
        return _run([*self.enter(), "--net", *command])

    def enter(self) -> list[str]:
        """The beginning of a command line that enters the holder's namespaces; which ones is to follow."""
        user = ["--user", "--preserve-credentials"] if self.user else []
        return ["nsenter", "--target", str(self.pid), *user]

    def processes(self) -> list[int]:
        """What runs on the node beside its holder, by the numbers that the whole machine sees."""
        found = []
        space = os.readlink(f"/proc/{self.pid}/ns/pid")
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(folder / "ns" / "pid") == space and _start_time(int(folder.name)):
                    found.append(int(folder.name))
            except OSError:  # it has ended, or is not ours
                continue
        return [pid for pid in found if pid != self.pid]

    def kill(self) -> None:
        """End the holder and all that lives in its namespaces; returns when they are gone."""
        if not self.alive:
            return
        os.kill(self.pid, signal.SIGKILL)
        stop = time.monotonic() + 10.0
        while self.alive and time.monotonic() < stop:
            time.sleep(0.01)


def hold_switch() -> Holder:
    """Start the switch's holder. Raises :class:`Impossible`."""
    check()
    user = os.geteuid() != 0
    flags = ["--user", "--map-root-user"] if user else []
    return _hold(
        ["unshare", *flags, "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child"], HOLD, user=user
    )


def hold_node(switch: Holder, hostname: str, hosts: Path) -> Holder:
    """Start a node's holder inside the switch's process namespace; ``hosts`` becomes its /etc/hosts.

    Raises :class:`Impossible`.
    """
    unshare = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child"]
    enter = [*switch.enter(), "--net", "--uts", "--mount", "--pid"]
    return _hold([*enter, *unshare], NODE + HOLD, hostname, str(hosts), user=switch.user)


def check() -> None:
    """Raise :class:`Impossible` with everything that stands in the way of a testbed."""
    if sys.platform != "linux":
        raise Impossible(f"a testbed is made of Linux namespaces, and this is {sys.platform}")
    missing = [f"{tool} ({package})" for tool, package in TOOLS.items() if shutil.which(tool) is None]
    if missing:
        raise Impossible(f"not installed: {', '.join(missing)}")
    flags = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    _run(["unshare", *flags, "--net", "--uts", "--mount", "--pid", "--fork", "true"])


def _hold(start: list[str], script: str, *arguments: str, user: bool) -> Holder:
    process = subprocess.Popen(
        [*start, "sh", "-c", script, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C on the command that made it is not meant for it
    )
    assert process.stdout is not None
    assert process.stderr is not None
    first = process.stdout.readline().strip()
    if not first:
        raise Impossible(f"{' '.join(start)}: {process.stderr.read().strip() or 'it ended without a word'}")
    process.stdout.close()
    process.stderr.close()
    pid = int(first)
    started = _start_time(pid)
    if started is None:
        raise Impossible("a namespace's first process ended at once")
    return Holder(pid=pid, started=started, user=user)


def _start_time(pid: int) -> int | None:
    """When a living process started, in clock ticks since the machine's boot; None if it is not alive."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=30)
    if done.returncode:
        hint = ""
        if os.geteuid() != 0 and "--user" in command:
            hint = "; user namespaces may be switched off here: run it as root"
        elif "Operation not permitted" in done.stderr:
            hint = "; a container needs --privileged (or CAP_SYS_ADMIN and CAP_NET_ADMIN) for this"
        raise Impossible(f"{' '.join(command)}: {done.stderr.strip()}{hint}")
    return done.stdout
