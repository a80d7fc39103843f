"""A cluster in this machine: real nodes, real torchrun, real bytes, and nothing left of it."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pdtlib.cli.app import main
from pdtlib.testbed import cluster, launch, namespaces

pytestmark = pytest.mark.timeout(600)
ROOT = Path(__file__).parents[2]
WORKER = Path(__file__).parent / "wire_worker.py"


@pytest.fixture
def name() -> Iterator[str]:
    """The name of a testbed that is ended after the test, whatever happens."""
    try:
        namespaces.check()
    except namespaces.Impossible as reason:
        pytest.skip(f"no testbed on this machine: {reason}")
    chosen = f"test-{time.monotonic_ns()}"
    yield chosen
    cluster.down(chosen)


def wait_for(condition: Callable[[], bool], timeout_s: float = 180.0) -> None:
    stop = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < stop, "waited too long"
        time.sleep(0.02)


def reaches(testbed: cluster.Testbed, node: int, other: int) -> bool:
    """Can a process on ``node`` connect to one that listens on ``other``?"""
    port = 5000
    listen = (
        f"import socket; s = socket.create_server(('{cluster.address(other)}', {port})); print(1, flush=True)"
    )
    call = f"import socket; socket.create_connection(('{cluster.address(other)}', {port}), timeout=1)"
    python = [sys.executable, "-S", "-c"]
    with subprocess.Popen(
        testbed.member(other).inside(*python, listen + "; s.accept()"), stdout=subprocess.PIPE
    ) as server:
        assert server.stdout is not None
        server.stdout.readline()
        try:
            done = subprocess.run(testbed.member(node).inside(*python, call), capture_output=True, timeout=60)
        finally:
            server.terminate()
    return done.returncode == 0


def test_nodes_links_and_power(name: str) -> None:
    testbed = cluster.up(name, nodes=3, ranks=1, inter="200mbit")
    assert reaches(testbed, 0, 2)
    with pytest.raises(ValueError, match="up already"):
        cluster.up(name, nodes=2, ranks=1, inter="200mbit")

    cluster.set_link(2, False, name=name)
    assert not reaches(testbed, 0, 2)
    cluster.set_link(2, True, name=name)
    wait_for(lambda: reaches(testbed, 0, 2))

    sleeper = subprocess.Popen(testbed.member(1).inside("sleep", "600"))
    wait_for(lambda: (Path(f"/proc/{sleeper.pid}/task/{sleeper.pid}/children")).read_text() != "")
    cluster.kill_node(1, name=name)
    assert sleeper.wait(10) != 0, "what runs on a node ends with it"
    assert [one.node for one in cluster.find(name).traffic()] == [0, 2]
    with pytest.raises(cluster.NoTestbed, match="node 1 is down"):
        cluster.kill_node(1, name=name)
    testbed = cluster.start_node(1, name=name)
    assert reaches(testbed, 0, 1)

    assert cluster.down(name)
    assert not any(member.alive for member in testbed.members if member)
    assert not cluster.down(name)
    with pytest.raises(cluster.NoTestbed, match="pdt testbed up"):
        cluster.find(name)


def test_a_testbed_whose_switch_is_killed_leaves_nothing(name: str) -> None:
    """As after a crash: what is left is found to be gone, and a new one can be made at once."""
    testbed = cluster.up(name, nodes=2, ranks=1, inter="50mbit")
    testbed.switch.kill()
    wait_for(lambda: not any(member.alive for member in testbed.members if member))
    with pytest.raises(cluster.NoTestbed, match="is gone"):
        cluster.find(name)
    cluster.up(name, nodes=1, ranks=1, inter="50mbit")


def test_a_testbed_that_fails_halfway_leaves_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    hold_switch = cluster.hold_switch
    monkeypatch.setattr(cluster, "hold_switch", lambda: made.append(hold_switch()) or made[-1])
    monkeypatch.setattr(cluster, "MTU_BYTES", 10)  # which the kernel refuses
    with pytest.raises(namespaces.Impossible, match="mtu"):
        cluster.up(name, nodes=2, ranks=1, inter="50mbit")
    assert not made[0].alive


def test_the_wire_carries_what_the_ledger_says(name: str, tmp_path: Path) -> None:
    """Two nodes, one rank each: headers and acknowledgements add less than 5 %, for every ZeRO stage."""
    cluster.up(name, nodes=2, ranks=1, inter="1gbit")
    said: list[str] = []
    code = launch.run([str(WORKER), str(tmp_path)], name=name, say=said.append)
    assert code == 0, "\n".join(said)
    for rank in (0, 1):
        rows = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert len(rows) == 4
        for row in rows:
            assert 1.0 <= row["device"] / row["ledger"] < 1.05, row


def test_a_link_is_as_slow_as_told(name: str) -> None:
    """5 MB at 20 Mbit/s need 2 s, less what the token bucket holds; no upper bound, as machines are busy."""
    testbed = cluster.up(name, nodes=2, ranks=1, inter="20mbit")
    python = [sys.executable, "-S", "-c"]
    listen = (
        "import socket, time\n"
        f"s = socket.create_server(('{cluster.address(1)}', 5000)); print(1, flush=True)\n"
        "c, _ = s.accept(); first = c.recv(1); start = time.monotonic(); n = 1\n"
        "while data := c.recv(1 << 20): n += len(data)\n"
        "print(n, time.monotonic() - start)"
    )
    send = (
        f"import socket; socket.create_connection(('{cluster.address(1)}', 5000)).sendall(bytes(5_000_000))"
    )
    with subprocess.Popen(
        testbed.member(1).inside(*python, listen), stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        server.stdout.readline()
        subprocess.run(testbed.member(0).inside(*python, send), check=True, timeout=120)
        received, seconds = server.stdout.readline().split()
    assert int(received) == 5_000_000
    assert float(seconds) > 1.8
    sent = cluster.find(name).traffic()[0].sent_bytes
    assert 5_000_000 < sent < 5_250_000


def test_a_run_that_fails_says_so_and_leaves_no_process(name: str) -> None:
    testbed = cluster.up(name, nodes=2, ranks=1, inter="200mbit")
    said: list[str] = []
    code = launch.run(["-m", "no_such_module"], name=name, say=said.append)
    assert code != 0
    assert any("no_such_module" in line for line in said)
    for member in testbed.members:
        assert member is not None
        assert member.processes() == []


def test_the_switch_keeps_its_address_when_nodes_are_lost(name: str) -> None:
    """Or the nodes that are left send to one that nobody has, and an elastic run stands still."""
    testbed = cluster.up(name, nodes=3, ranks=1, inter="200mbit")

    def address() -> str:
        shown = testbed.switch.network("ip", "-oneline", "link", "show", "br0").split()
        return shown[shown.index("link/ether") + 1]

    assert address() == cluster.SWITCH_MAC
    for node in range(3):
        cluster.kill_node(node, name=name)
        assert address() == cluster.SWITCH_MAC, node


def test_ending_the_testbed_ends_its_runs(name: str) -> None:
    testbed = cluster.up(name, nodes=1, ranks=2, inter="200mbit")
    work = [sys.executable, "-S", "-c", "import time; print('at work', flush=True); time.sleep(600)"]
    said: list[str] = []
    codes: list[int] = []
    command = ["--no-python", *work]
    runner = threading.Thread(
        target=lambda: codes.append(launch.run(command, name=name, say=said.append)), daemon=True
    )
    runner.start()
    wait_for(lambda: said.count("node 0: at work") == 2)
    (member,) = testbed.members
    assert member is not None
    assert len(member.processes()) >= 3, "an agent and two ranks"
    cluster.down(name)
    runner.join(180)
    assert codes == [128 + signal.SIGKILL], said
    assert not member.alive


def test_stopping_the_command_stops_the_ranks(name: str) -> None:
    """SIGTERM reaches torchrun through nsenter, and torchrun ends its ranks."""
    testbed = cluster.up(name, nodes=1, ranks=1, inter="200mbit")
    work = "import time; print('at work', flush=True); time.sleep(600)"
    pdt = [sys.executable, "-c", "from pdtlib.cli import main; main()", "testbed", "run", "--name", name]
    (member,) = testbed.members
    assert member is not None
    with subprocess.Popen(
        [*pdt, "--no-python", sys.executable, "-S", "-c", work], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert "at work" in process.stdout.readline()
        process.kill()
    wait_for(lambda: member.processes() == [])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["up", "--nodes", "0"], "nodes=0: valid are 1 to 16"),
        (["up", "--inter", "fast"], "inter='fast': a rate from 100kbit to 100gbit"),
        (["up", "--name", "../x"], "name='../x'"),
        (["kill-node", "0", "--name", "nothing-of-that-name"], "`pdt testbed up` makes one"),
        (["run", "--name", "nothing-of-that-name"], "give a job"),
    ],
)
def test_wrong_calls_are_refused(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["testbed", *words])
    assert stop.value.code == 2
    assert complaint in capsys.readouterr().err


def test_a_machine_that_cannot_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(namespaces.shutil, "which", lambda tool: None if tool == "tc" else f"/bin/{tool}")
    with pytest.raises(SystemExit) as stop:
        main(["testbed", "up", "--name", "impossible"])
    assert stop.value.code == 1
    assert "not installed: tc (iproute2)" in capsys.readouterr().err


def test_the_doctor_measures_the_link_between_nodes(name: str) -> None:
    """At 40 Mbit/s 4 MiB take 0.84 s each way, less what the token bucket holds; each node reports once."""
    cluster.up(name, nodes=2, ranks=2, inter="40mbit")
    said: list[str] = []
    doctor = "from pdtlib.cli import main; main(['doctor'])"
    words = ["--no-python", sys.executable, "-c", doctor]
    code = launch.run(words, name=name, say=said.append)
    assert code == 0, "\n".join(said)
    found = [line for line in said if "bandwidth between nodes" in line]
    assert len(found) == 2, "\n".join(said)
    for line in found:
        assert "hint" in line
        assert "slower than a 1 Gbit/s link" in line
        seconds = float(line.split(" ms")[0].rsplit(" ", 1)[1]) / 1e3
        assert seconds > 0.7, line


def test_tensor_parallelism_across_nodes_is_as_slow_as_planned() -> None:
    """Lab 05's training in both placements; benchmarks/placement.py writes the report."""
    report = json.loads((ROOT / "benchmarks" / "results" / "placement.json").read_text())
    inside, across = report["rows"]
    assert (inside["where"], across["where"]) == ("inside", "across")
    planned = across["predicted"]["step_s"] / inside["predicted"]["step_s"]
    assert planned > 2, "the placement must matter"
    assert across["step_s"] / inside["step_s"] == pytest.approx(planned, rel=0.2)
    for row in report["rows"]:
        assert row["messages_off"] == 0
        assert 1.0 <= row["wire_bytes"] / row["ledger_bytes"] < 1.05
