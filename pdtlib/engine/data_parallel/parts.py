"""A module that is never called as a whole: its parts are, one by one, as a pipeline's rank does."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

Named = list[tuple[str, nn.Parameter]]


class Parts(nn.Module):
    """Parts of one model, which keep the names that their parameters have in the whole model.

    Parts may share parameters. Those of ``apart`` must not lie in one buffer with others, because somebody
    else has a copy that must be cut into the same shards.
    """

    def __init__(self, parts: Sequence[nn.Module], *, apart: Sequence[nn.Parameter] = ()) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.apart = frozenset(id(param) for param in apart)

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        memo = set() if memo is None else memo
        yield prefix, self
        for part in self.parts:
            yield from part.named_modules(memo, prefix, remove_duplicate)

    def state_dict(self, *, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        destination = {} if destination is None else destination
        for part in self.parts:
            part.state_dict(destination=destination, prefix=prefix, keep_vars=keep_vars)
        return destination


@dataclass(frozen=True)
class Place:
    """Which parts use a parameter, by their numbers, and whether it must lie in a buffer of its own."""

    owners: frozenset[int]
    apart: bool


def places(module: nn.Module) -> dict[int, Place]:
    """The place of each parameter, by its id; a module that isn't in parts is part 0."""
    parts: Sequence[nn.Module] = [module]
    apart: frozenset[int] = frozenset()
    if isinstance(module, Parts):
        parts, apart = list(module.parts), module.apart
    owners: dict[int, set[int]] = {}
    for number, part in enumerate(parts):
        for param in part.parameters():
            owners.setdefault(id(param), set()).add(number)
    return {key: Place(frozenset(numbers), key in apart) for key, numbers in owners.items()}


@dataclass(frozen=True)
class Share:
    """Parameters that may lie in one buffer, and the numbers of the parts that use them.

    Experts have buffers of their own, since fewer ranks have them.
    """

    owners: frozenset[int]
    named: Named


def shares(module: nn.Module, is_expert: Callable[[nn.Parameter], bool]) -> list[Share]:
    """Every parameter of ``module`` in one share, in the order of their first parameters."""
    found: dict[tuple[Place, bool], Named] = {}
    place_of = places(module)
    for name, param in module.named_parameters():
        found.setdefault((place_of[id(param)], is_expert(param)), []).append((name, param))
    return [Share(place.owners, named) for (place, _), named in found.items()]
