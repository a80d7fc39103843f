"""The communication ledger: every collective of the engine writes here what it sends, as its algorithm counts
it.

A row counts the calls that agree in mesh axis, collective, phase and message size. The bytes are those of the
ring algorithm (:func:`pdtlib.plan.comm.sent_bytes`), which is what ``pdt predict`` prints; a backend may move
more on the wire, and a network counter measures that.
"""

from collections import Counter
from typing import Any

from pdtlib.plan.comm import sent_bytes


class Ledger:
    """What one rank has sent since the last :meth:`clear`.

    ``message_bytes`` is the whole logical message: the buffer that an all-reduce or a broadcast works on, the
    input of a reduce-scatter or an all-to-all, the output of an all-gather.
    """

    def __init__(self) -> None:
        self._calls: Counter[tuple[str, str, str, int, int]] = Counter()
        self._sent: dict[tuple[str, str, str, int, int], float] = {}

    def record(
        self,
        *,
        axis: str,
        collective: str,
        phase: str,
        message_bytes: int,
        group_size: int,
        sent: float | None = None,
    ) -> None:
        """Count one call. A group of one rank sends nothing and is not written down.

        ``sent`` is what this rank sends, if it is not the algorithm's share: a message of uneven parts.
        """
        if group_size > 1:
            row = (axis, collective, phase, message_bytes, group_size)
            share = sent_bytes(collective, message_bytes, group_size) if sent is None else sent
            self._calls[row] += 1
            self._sent[row] = self._sent.get(row, 0.0) + share

    def rows(self) -> list[dict[str, Any]]:
        """One row per kind of message, in the order of first use, with the keys of ``pdt predict``'s
        ``comm``."""
        return [
            {
                "axis": axis,
                "collective": collective,
                "phase": phase,
                "count": count,
                "message_bytes": message_bytes,
                "sent_bytes_per_rank": self._sent[axis, collective, phase, message_bytes, group_size],
            }
            for (axis, collective, phase, message_bytes, group_size), count in self._calls.items()
        ]

    def sent_bytes_per_rank(self) -> float:
        """Bytes that this rank has sent in all."""
        return sum(row["sent_bytes_per_rank"] for row in self.rows())

    def clear(self) -> None:
        """Forget everything; a training loop does so after each step."""
        self._calls.clear()
        self._sent.clear()
