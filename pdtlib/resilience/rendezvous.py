"""A meeting point for torchrun's agents on none of the nodes.

    python -m pdtlib.resilience.rendezvous PORT

Where one of the nodes hosts the rendezvous, as torchrun does by itself, losing that node ends an elastic run.
Start this on a machine that does not train, and every agent with ``--rdzv-endpoint MACHINE:PORT --rdzv-conf
is_host=0``; then any node may be lost. It keeps what the agents agree on, needs next to nothing, and ends
with Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

from torch.distributed import TCPStore


def main(arguments: Sequence[str] | None = None) -> int:
    """Listen on the port that is given, on all interfaces, and say so once it is open."""
    words = sys.argv[1:] if arguments is None else arguments
    if len(words) != 1 or not words[0].isdigit():
        print("usage: python -m pdtlib.resilience.rendezvous PORT", file=sys.stderr)
        return 2
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    store = TCPStore("0.0.0.0", int(words[0]), is_master=True, wait_for_workers=False)
    print(f"listening on port {store.port}", flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    sys.exit(main())
