"""``pdt doctor`` finds what is wrong, says what to do, and is quiet about what is right."""

import json
import os
import socket
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from pdtlib.cli.app import main
from pdtlib.resilience.doctor import machine, network
from pdtlib.resilience.doctor.finding import Finding

PDT = [sys.executable, "-c", "from pdtlib.cli import main; main()"]


def only(findings: list[Finding], check: str) -> Finding:
    (found,) = [finding for finding in findings if finding.check == check]
    return found


def test_an_interface_that_is_not_there() -> None:
    present = [name for _, name in socket.if_nameindex()]
    found = only(list(network.interfaces({"GLOO_SOCKET_IFNAME": "nope0"})), "GLOO_SOCKET_IFNAME")
    assert found.verdict == "bad"
    assert "names nope0" in found.message
    assert found.fix.removeprefix("export GLOO_SOCKET_IFNAME=") in present
    assert only(list(network.interfaces({"NCCL_SOCKET_IFNAME": "lo"})), "NCCL_SOCKET_IFNAME").verdict == "ok"
    assert len(list(network.interfaces({"NCCL_SOCKET_IFNAME": "^docker"}))) == 1, "an exclusion names nothing"


def test_a_rendezvous_that_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "1"}
        assert only(list(network.rendezvous(env)), "MASTER_ADDR").verdict == "ok"
    found = only(list(network.rendezvous(env)), "MASTER_ADDR")
    assert found.verdict == "bad"
    assert f"127.0.0.1:{port} does not answer" in found.message
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "10.1.2.3")
    assert only(list(network.rendezvous({})), "rendezvous").verdict == "ok"
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "127.0.1.1")
    assert "--local-addr" in only(list(network.rendezvous({})), "rendezvous").fix


def test_settings_for_debugging_that_were_left_on() -> None:
    assert [finding.verdict for finding in network.slowing_settings({"NCCL_DEBUG": "INFO"})] == ["ok"]
    found = list(network.slowing_settings({"NCCL_P2P_DISABLE": "1", "TORCH_DISTRIBUTED_DEBUG": "detail"}))
    assert [finding.fix for finding in found] == ["unset NCCL_P2P_DISABLE", "unset TORCH_DISTRIBUTED_DEBUG"]


@pytest.mark.parametrize(
    ("env", "ranks", "cores", "fix"),
    [
        ({"OMP_NUM_THREADS": "1"}, 2, 2, ""),
        ({"OMP_NUM_THREADS": "4"}, 2, 2, "export OMP_NUM_THREADS=1"),
        ({"OMP_NUM_THREADS": "4"}, 4, 64, ""),
        ({"OMP_NUM_THREADS": "64"}, 4, 64, "export OMP_NUM_THREADS=16"),
        ({"OMP_NUM_THREADS": "1"}, 8, 2, "use at most 2 rank(s) here, or a testbed with slow links"),
    ],
)
def test_threads(env: dict[str, str], ranks: int, cores: float, fix: str) -> None:
    (found,) = machine.threads(env, ranks=ranks, cores=cores)
    assert found.fix == fix
    assert found.verdict == ("hint" if fix else "ok")


@pytest.mark.parametrize(
    ("total", "free", "verdict"), [(64e6, 60e6, "bad"), (8e9, 5e8, "hint"), (8e9, 7e9, "ok")]
)
def test_shared_memory(
    total: float, free: float, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: usage(total, total - free, free))
    (found,) = machine.shared_memory(tmp_path)
    assert found.verdict == verdict


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's settings")
def test_the_allocators_setting_does_what_the_hint_says() -> None:
    """In a fresh process: new pages every time, and a tenth of them with the variable that the fix names."""
    thp = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not thp.exists() or "[never]" in thp.read_text():
        pytest.skip("this kernel gives no huge pages")
    code = (
        "from pdtlib.resilience.doctor import machine\n"
        "(found,) = machine.allocator()\n"
        "print(found.message.split('%')[0], found.fix)"
    )
    outputs = []
    for tunables in ("", machine.HUGE_PAGES):
        env = {**os.environ, "GLIBC_TUNABLES": tunables, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout.strip())
    (before, fix), (after, nothing) = (
        output.split(" ", 1) if " " in output else (output, "") for output in outputs
    )
    assert int(before) > 50
    assert fix.endswith(f"export GLIBC_TUNABLES={machine.HUGE_PAGES}")
    assert int(after) < int(before) / 10
    assert nothing == ""


def test_ranks_that_cannot_talk(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(*_: object, **__: object) -> list[float]:
        raise TimeoutError("ranks [0, 1] did not finish within 60 s")

    monkeypatch.setattr(network, "spawn", nobody)
    (found,) = network.bandwidth()
    assert found.verdict == "bad"
    assert "two ranks cannot talk: ranks [0, 1]" in found.message
    monkeypatch.setattr(network, "spawn", lambda *_, **__: [0.1, 0.2])
    assert next(network.bandwidth()).verdict == "hint"
    monkeypatch.setattr(network, "spawn", lambda *_, **__: [0.001, 0.002])
    assert next(network.bandwidth()).verdict == "ok"


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with pytest.raises(SystemExit) as stop:
        main(["doctor", "--ranks", "2", "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert {"interfaces", "rendezvous", "settings", "threads", "open files", "GPUs"} <= {
        row["check"] for row in rows
    }
    assert "bandwidth inside the node" in {row["check"] for row in rows}
    assert all(bool(row["fix"]) == (row["verdict"] != "ok") for row in rows)
    assert (stop.value.code == 1) == any(row["verdict"] == "bad" for row in rows)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nope0")
    with pytest.raises(SystemExit) as stop:
        main(["doctor", "--no-measure"])
    assert stop.value.code == 1
    assert "bad   GLOO_SOCKET_IFNAME: names nope0" in capsys.readouterr().out


def test_nodes_that_cannot_talk_are_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(backend: str) -> None:
        raise RuntimeError("Connection closed by peer\nand a long story")

    monkeypatch.setattr(network, "init", fail)
    two_nodes = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}
    (found,) = network.bandwidth_between({**two_nodes, "LOCAL_RANK": "0"})
    assert (found.check, found.verdict) == ("bandwidth between nodes", "bad")
    assert found.message == "the nodes cannot talk: Connection closed by peer"
    assert "firewall" in found.fix
    assert list(network.bandwidth_between({**two_nodes, "LOCAL_RANK": "1"})) == [], "one of a node speaks"
    assert list(network.bandwidth_between({"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"})) == []
