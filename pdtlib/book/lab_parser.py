"""The command line that labs have in common: which preset, and where to write the report."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch


class LabParser(argparse.ArgumentParser):
    """``--preset`` and ``--json``; a lab adds its own options. Presets but ``laptop`` need GPUs."""

    def __init__(self, doc: str, presets: Collection[str]) -> None:
        """``doc`` is the lab's docstring, whose first line describes it."""
        super().__init__(description=doc.split("\n")[0])
        self.add_argument("--preset", choices=sorted(presets), default="laptop")
        self.add_argument("--json", type=Path, help="write predicted, measured and error to this file")

    def parse_args(self, *arguments: Any, **options: Any) -> Any:
        """The options; ends with exit code 2 where the preset's GPUs are not there."""
        found = super().parse_args(*arguments, **options)
        if found.preset != "laptop" and not torch.cuda.is_available():
            self.error(f"--preset {found.preset}: needs a GPU for each process; valid here: laptop")
        return found
