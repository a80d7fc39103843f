"""What chapter 7 says of buckets, against the simulated timeline."""

import pytest

from pdtlib.plan.comm import ring_steps, sent_bytes
from pdtlib.plan.overlap import bucket_timeline, collective_s

GB, MB = 10**9, 10**6


@pytest.mark.parametrize(("ranks", "backward_s"), [(64, 2.0), (8, 1.2), (256, 3.0)])
def test_from_the_critical_size_on_only_the_last_bucket_is_exposed(ranks: int, backward_s: float) -> None:
    grads, rate, latency = 14 * GB, 25e9, 10e-6
    spare = backward_s / grads - sent_bytes("all_reduce", 1, ranks) / rate
    critical = ring_steps("all_reduce", ranks) * latency / spare

    def exposed(size: float) -> tuple[float, float]:
        """Exposed seconds, and those of one bucket's message."""
        count = max(1, int(grads / size))  # buckets of at least that size
        line = bucket_timeline(
            [grads // count] * count,
            limit_bytes=grads // count,
            backward_s=backward_s,
            dp=ranks,
            bytes_per_s=rate,
            latency_s=latency,
        )
        one = collective_s("all_reduce", grads // count, ranks, bytes_per_s=rate, latency_s=latency)
        return line.exposed_s, one

    for factor in (1.01, 2, 10):
        waits, one = exposed(factor * critical)
        assert waits == pytest.approx(one, rel=1e-6)
    waits, one = exposed(critical / 2)
    assert waits > 2 * one
