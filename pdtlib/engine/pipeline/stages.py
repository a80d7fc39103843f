"""Cut a list of layers into the positions of a pipeline."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from pdtlib.engine.models.transformer import Layers
from pdtlib.plan.chunks import split_layers
from pdtlib.plan.schedule import Layout


class Stretch(Layers):
    """Consecutive layers of a list, each called with what the one before returned."""

    def forward(self, x: Any) -> torch.Tensor:
        for layer in self:
            x = layer(x)
        return x


def cut_layers(
    layers: Sequence[nn.Module], layout: Layout, rank: int, *, sizes: Sequence[int] | None = None
) -> list[nn.Module]:
    """This rank's parts of a model that is a list of layers, each of which takes and returns one tensor.

    ``sizes`` are the numbers of layers at each position, by default as equal as possible, the larger ones
    first. Parameters are named by the number of their layer, as in ``7.weight``. The first and the last
    position may share one parameter. Raises ValueError for sizes that do not fit, and for other sharing.
    """
    length = layout.length
    if sizes is None:
        sizes = [len(run) for run in split_layers(len(layers), length)]
    if len(sizes) != length or sum(sizes) != len(layers) or min(sizes) < 1:
        raise ValueError(
            f"sizes={list(sizes)}: {len(layers)} layers on {length} positions need {length} sizes from 1 "
            f"that sum to {len(layers)}"
        )
    stops = [sum(sizes[: position + 1]) for position in range(length)]
    runs = [range(stop - size, stop) for stop, size in zip(stops, sizes, strict=True)]
    tied = _tied(layers, runs)
    parts: list[nn.Module] = []
    for chunk in range(layout.chunks):
        position = layout.position(rank, chunk)
        part = Stretch(runs[position], (layers[number] for number in runs[position]))
        vars(part)["tied_weight"] = tied if position in (0, length - 1) else None  # no parameter of its own
        parts.append(part)
    return parts


def _tied(layers: Sequence[nn.Module], runs: Sequence[range]) -> nn.Parameter | None:
    """The parameter that the first and the last position share."""
    users: dict[int, set[int]] = {}
    params: dict[int, nn.Parameter] = {}
    for position, run in enumerate(runs):
        for number in run:
            for param in layers[number].parameters():
                users.setdefault(id(param), set()).add(position)
                params[id(param)] = param
    shared = {key: positions for key, positions in users.items() if len(positions) > 1}
    if not shared:
        return None
    ((key, positions), *others) = shared.items()
    if others or positions != {0, len(runs) - 1}:
        where = sorted(positions if not others else set().union(*shared.values()))
        raise ValueError(
            f"layers: positions {where} share {len(shared)} parameters; only the first and the last position "
            "may share one"
        )
    return params[key]
