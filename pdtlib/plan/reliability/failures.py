"""How often a run is interrupted: measured fleets, scaled to another size.

Independent failures add up, so the mean time between failures (MTBF) of N GPUs is that of one divided by N.
The rate is of everything that stops the job (hosts, network, software too), counted per GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

from pdtlib.plan.arguments import at_least
from pdtlib.plan.units import HOUR_S


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """A measured fleet: ``interruptions`` of a job on ``gpus`` GPUs within ``hours``."""

    title: str
    gpu: str
    gpus: int
    hours: float
    interruptions: float
    source: str

    @property
    def gpu_hours_per_failure(self) -> float:
        return self.gpus * self.hours / self.interruptions

    def mtbf_h(self, gpus: int) -> float:
        """Hours between interruptions of a job on ``gpus`` GPUs of this kind."""
        at_least("gpus", gpus, 1)
        return self.gpu_hours_per_failure / gpus

    def mtbf_s(self, gpus: int) -> float:
        return self.mtbf_h(gpus) * HOUR_S


FLEETS = {
    "llama3": Fleet(
        title="Llama 3 405B, 16,384 H100, 54 days",
        gpu="H100",
        gpus=16384,
        hours=54 * 24,
        interruptions=419,
        source="Llama 3 (arXiv 2407.21783), section 3.3.4, table 5: unexpected interruptions",
    ),
    "rsc1": Fleet(
        title="A research cluster's jobs on 1,024 A100",
        gpu="A100",
        gpus=1024,
        hours=7.9,
        interruptions=1,
        source="Kokolis et al. 2024 (arXiv 2410.21680): mean time to failure of 1,024-GPU jobs",
    ),
}
