"""Published bubble rates of the zero-bubble paper, with the measured times that they were computed from.

Qi, Wan, Huang and Lin, "Zero Bubble Pipeline Parallelism", ICLR 2024: tables 5 (rates) and 9 (times, ms). The
simulator gives 1F1B, ZB-H1 and ZB-H2 to all four printed digits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pdtlib.plan.schedule.replay import Costs


@dataclass(frozen=True, kw_only=True)
class PublishedRates:
    """One column of the tables; ``rates`` by the paper's names."""

    model: str
    stages: int
    microbatches: int
    costs: Costs  # in ms
    kept_for_weight: float  # M_W / M_B = 32 h / (34 h + 5 a s), section 4.1
    interleaved_chunks: int
    rates: Mapping[str, float]


def _row(
    model: str, stages: int, microbatches: int, times: tuple[float, float, float, float], *rates: float
) -> PublishedRates:
    hidden, heads, seq = {"1.5B": (2304, 24, 1024), "14.6B": (5120, 40, 1024)}[model]
    forward, backward_input, backward_weight, transfer = times
    return PublishedRates(
        model=model,
        stages=stages,
        microbatches=microbatches,
        costs=Costs(
            forward=forward,
            backward_input=backward_input,
            backward_weight=backward_weight,
            transfer=transfer,
        ),
        kept_for_weight=32 * hidden / (34 * hidden + 5 * heads * seq),
        interleaved_chunks=3,
        rates=dict(zip(("1F1B", "1F1B-I", "ZB-H1", "ZB-H2", "ZB-1p", "ZB-2p"), rates, strict=True)),
    )


PUBLISHED_RATES = (
    _row("1.5B", 8, 24, (18.522, 18.086, 9.337, 0.601), 0.2431, 0.1055, 0.1585, 0.1083, 0.1585, 0.0433),
    _row("1.5B", 8, 32, (18.513, 18.086, 9.331, 0.626), 0.1985, 0.0818, 0.1242, 0.0837, 0.1242, 0.0039),
    _row("1.5B", 8, 64, (18.546, 18.097, 9.321, 0.762), 0.1240, 0.0443, 0.0674, 0.0444, 0.0674, 0.0026),
    _row("14.6B", 16, 48, (11.347, 11.248, 8.132, 0.377), 0.2552, 0.1104, 0.1397, 0.0672, 0.1397, 0.0066),
    _row("14.6B", 16, 64, (11.307, 11.254, 8.101, 0.379), 0.2082, 0.0852, 0.1088, 0.0516, 0.1088, 0.0054),
    _row("14.6B", 16, 128, (11.325, 11.308, 8.109, 0.378), 0.1251, 0.0445, 0.0576, 0.0266, 0.0576, 0.0028),
)
