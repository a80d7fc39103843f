"""A registry for torchtitan's manager: the two sections that an export fills, without a model of its own."""

from dataclasses import dataclass, field

from torchtitan.config.configs import ParallelismConfig, TrainingConfig


@dataclass(kw_only=True)
class Sections:
    """torchtitan's sections; its own models import triton, which needs a GPU build of torch."""

    training: TrainingConfig = field(default_factory=TrainingConfig)
    parallelism: ParallelismConfig = field(default_factory=ParallelismConfig)
    hf_assets_path: str = "."


def sections():
    """The configuration that ``--config sections`` names."""
    return Sections()
