"""Every check, in order.

A check looks at the machine itself and yields findings: ``ok``, ``hint`` (slower or more fragile than need
be) or ``bad`` (a run will fail or hang). Each finding that is not ``ok`` says what to do.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from pdtlib.resilience.doctor import machine, network
from pdtlib.resilience.doctor.finding import Finding


def examine(*, ranks: int, measure: bool = True, env: Mapping[str, str] | None = None) -> list[Finding]:
    """All findings for ``ranks`` ranks on this machine. ``measure`` also sends and allocates something.

    Where torchrun has started this on several nodes, all ranks call it, and the first of each node reports.
    """
    variables = os.environ if env is None else env
    if variables.get("LOCAL_RANK", "0") != "0":  # of this machine the node's first rank speaks
        return list(network.bandwidth_between(variables)) if measure else []
    found = [
        *network.interfaces(variables),
        *network.rendezvous(variables),
        *network.slowing_settings(variables),
        *machine.clocks(),
        *machine.shared_memory(),
        *machine.threads(variables, ranks=ranks, cores=machine.available_cores()),
        *machine.limits(),
        *machine.devices(ranks),
    ]
    if measure:
        found += [*machine.allocator(), *network.bandwidth(), *network.bandwidth_between(variables)]
    return found
