"""Nodes, the switch between them, and what can be done to them: ``pdt testbed up`` and its companions.

Node i is called node<i>, and its interface ``e0`` has the address 10.77.0.(i + 1) and MTU 9000 (as fast
Ethernet has in machine rooms); what it sends and what it receives are limited to ``inter`` by token buckets
at both ends of its link. Ranks of one node talk through its loopback, which has no limit. State is kept in
a file, so that each command may come from another shell.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pdtlib.testbed.namespaces import Holder, Impossible, hold_node, hold_switch

MTU_BYTES = 9000
MOST_NODES = 16
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


SWITCH_ADDRESS = "10.77.0.254"
"""The switch's own address; what listens there outlives any node."""
SWITCH_MAC = "02:00:00:00:00:fe"
"""Else a bridge has the lowest address of its ports, and another one when that port's node loses its power:
what the other nodes send to the switch is then lost until they ask for its address again, a minute later."""


class NoTestbed(ValueError):
    """A command for a testbed or a node that is not up."""


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What a node's interface to the others has sent and received, all headers included."""

    node: int
    sent_bytes: int
    received_bytes: int
    sent_packets: int
    received_packets: int


@dataclass(frozen=True, kw_only=True)
class Testbed:
    """A testbed that is up. ``members[i]`` is the holder of node i, None while that node is down."""

    name: str
    ranks: int
    inter: str
    switch: Holder
    members: tuple[Holder | None, ...]

    __test__ = False  # for pytest, which would take it for a class of tests

    @property
    def nodes(self) -> int:
        return len(self.members)

    def alive(self, node: int) -> bool:
        """Is the node up? Raises :class:`NoTestbed` for a node that does not exist."""
        if not 0 <= node < self.nodes:
            raise NoTestbed(f"node={node}: the testbed has nodes 0 to {self.nodes - 1}")
        holder = self.members[node]
        return holder is not None and holder.alive

    def member(self, node: int) -> Holder:
        """The holder of a node that is up. Raises :class:`NoTestbed` for one that is not."""
        if not self.alive(node):
            raise NoTestbed(f"node {node} is down; `pdt testbed start-node {node}` starts it again")
        holder = self.members[node]
        assert holder is not None
        return holder

    def traffic(self) -> list[Traffic]:
        """The counters of every node that is up, read from its own interface."""
        return [_traffic(node, self.member(node)) for node in range(self.nodes) if self.alive(node)]


def address(node: int) -> str:
    """The address of a node within the testbed."""
    return f"10.77.0.{node + 1}"


def rate_bits_per_s(text: str) -> float:
    """Read a rate such as 200mbit. Raises ``ValueError``.

    >>> rate_bits_per_s("200mbit")
    200000000.0
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit)", text)
    rate = float(match[1]) * UNITS[match[2]] if match else 0.0
    if not 1e5 <= rate <= 1e11:
        raise ValueError(f"inter={text!r}: a rate from 100kbit to 100gbit, such as 200mbit")
    return rate


def rate_text(inter: str) -> str:
    """Such a rate for readers.

    >>> rate_text("50mbit")
    '50 Mbit/s'
    """
    return f"{rate_bits_per_s(inter) / UNITS['mbit']:g} Mbit/s"


def up(name: str = "default", *, nodes: int, ranks: int, inter: str) -> Testbed:
    """Make a testbed of ``nodes`` nodes for ``ranks`` ranks each.

    Raises ``ValueError`` for arguments out of range and for a testbed of that name that is up already, and
    :class:`pdtlib.testbed.namespaces.Impossible` where the machine has no namespaces to give.
    """
    rate_bits_per_s(inter)
    for field, value, most in (("nodes", nodes, MOST_NODES), ("ranks", ranks, 64)):
        if not 1 <= value <= most:
            raise ValueError(f"{field}={value}: valid are 1 to {most}")
    with _state(name) as state:
        if state and _from_dict(state).switch.alive:
            raise ValueError(f"testbed {name!r} is up already; `pdt testbed down` ends it")
        switch = hold_switch()
        try:
            switch.network("ip", "link", "set", "lo", "up")
            switch.network("ip", "link", "add", "br0", "address", SWITCH_MAC, "type", "bridge")
            switch.network("ip", "link", "set", "br0", "mtu", str(MTU_BYTES), "up")
            switch.network("ip", "address", "add", f"{SWITCH_ADDRESS}/24", "dev", "br0")
            # The second form is the address as a socket of IPv6 sees it, which is what torch asks for.
            hosts = [
                f"{form}{address(node)} node{node}\n" for node in range(nodes) for form in ("", "::ffff:")
            ]
            _hosts(name).write_text("127.0.0.1 localhost\n" + "".join(hosts), encoding="utf-8")
            members = tuple(_join(name, switch, node, inter) for node in range(nodes))
        except BaseException:
            switch.kill()
            raise
        made = Testbed(name=name, ranks=ranks, inter=inter, switch=switch, members=members)
        _write(state, made)
        return made


def find(name: str = "default") -> Testbed:
    """The testbed of that name. Raises :class:`NoTestbed` when it is not up."""
    with _state(name) as state:
        if not state:
            raise NoTestbed(f"no testbed {name!r} is up; `pdt testbed up` makes one")
        found = _from_dict(state)
        if not found.switch.alive:
            state.clear()
            raise NoTestbed(f"testbed {name!r} is gone (the machine or its first process was stopped)")
        return found


def down(name: str = "default") -> bool:
    """End a testbed and everything that runs in it; False if there was none."""
    with _state(name) as state:
        if not state:
            return False
        _from_dict(state).switch.kill()
        state.clear()
        return True


def kill_node(node: int, *, name: str = "default") -> None:
    """Let a node lose its power: its processes, its memory and its link are gone at once."""
    testbed = find(name)
    testbed.member(node).kill()
    with suppress(Impossible):  # the kernel removes the cable too, but takes its time
        testbed.switch.network("ip", "link", "delete", f"p{node}")


def start_node(node: int, *, name: str = "default") -> Testbed:
    """Start a node that is down: empty, with the same address."""
    testbed = find(name)
    if testbed.alive(node):
        raise NoTestbed(f"node {node} is up")
    with _state(name) as state:
        members = list(testbed.members)
        members[node] = _join(name, testbed.switch, node, testbed.inter)
        again = replace(testbed, members=tuple(members))
        _write(state, again)
        return again


def set_link(node: int, up_: bool, *, name: str = "default") -> None:
    """Pull or plug a node's cable, at the switch: the node sees no carrier, its processes live on."""
    testbed = find(name)
    testbed.member(node)
    testbed.switch.network("ip", "link", "set", f"p{node}", "up" if up_ else "down")


def set_rate(node: int, inter: str, *, name: str = "default") -> None:
    """Give a node's link another speed, both ways."""
    testbed = find(name)
    _limit(testbed.switch, testbed.member(node), node, inter)


def _join(name: str, switch: Holder, node: int, inter: str) -> Holder:
    """Start a node and plug it into the switch."""
    holder = hold_node(switch, f"node{node}", _hosts(name))
    try:
        port, mtu = f"p{node}", str(MTU_BYTES)
        switch.network(
            *("ip", "link", "add", port, "mtu", mtu, "type", "veth"),
            *("peer", "name", "e0", "mtu", mtu, "netns", str(holder.pid)),
        )
        switch.network("ip", "link", "set", port, "master", "br0", "up")
        holder.network("ip", "address", "add", f"{address(node)}/24", "dev", "e0")
        holder.network("ip", "link", "set", "e0", "up")
        _limit(switch, holder, node, inter)
    except BaseException:
        holder.kill()
        raise
    return holder


def _limit(switch: Holder, holder: Holder, node: int, inter: str) -> None:
    """A token bucket for what the node sends and one for what it receives."""
    rate = rate_bits_per_s(inter)
    # The bucket holds 4 ms, the kernel's coarsest tick, and at least one packet; a queue of 100 ms is
    # longer than what TCP keeps under way, so next to nothing is dropped and sent again.
    burst = max(2 * MTU_BYTES, int(rate / 8 * 0.004))
    limit = ["tbf", "rate", inter, "burst", f"{burst}b", "latency", "100ms"]
    holder.network("tc", "qdisc", "replace", "dev", "e0", "root", *limit)
    switch.network("tc", "qdisc", "replace", "dev", f"p{node}", "root", *limit)


def _traffic(node: int, holder: Holder) -> Traffic:
    for line in Path(f"/proc/{holder.pid}/net/dev").read_text(encoding="utf-8").splitlines():
        interface, _, counters = line.partition(":")
        if interface.strip() == "e0":
            numbers = [int(number) for number in counters.split()]
            return Traffic(
                node=node,
                received_bytes=numbers[0],
                received_packets=numbers[1],
                sent_bytes=numbers[8],
                sent_packets=numbers[9],
            )
    raise Impossible(f"node {node} has lost its interface e0")


def _hosts(name: str) -> Path:
    """The nodes' /etc/hosts."""
    return _path(name).with_suffix(".hosts")


def _path(name: str) -> Path:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
        raise ValueError(f"name={name!r}: up to 64 letters, digits, '_' and '-'")
    folder = Path(tempfile.gettempdir()) / f"pdt-testbed-{os.geteuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / f"{name}.json"


@contextmanager
def _state(name: str) -> Iterator[dict[str, Any]]:
    """What is known of a testbed, empty if nothing; changes are kept, one command at a time."""
    path = _path(name)
    with path.with_name("lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        before = dict(state)
        try:
            yield state
        finally:
            if not state:
                path.unlink(missing_ok=True)
                _hosts(name).unlink(missing_ok=True)
            elif state != before:
                path.write_text(json.dumps(state), encoding="utf-8")


def _write(state: dict[str, Any], testbed: Testbed) -> None:
    state.clear()
    state.update(asdict(testbed))


def _from_dict(state: dict[str, Any]) -> Testbed:
    members = tuple(Holder(**one) if one else None for one in state["members"])
    return Testbed(**{**state, "switch": Holder(**state["switch"]), "members": members})
