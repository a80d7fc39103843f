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
class Share:
    """Parameters that may lie in one buffer, and the numbers of the parts that use them.

    Experts have buffers of their own, since fewer ranks have them.
    """

    owners: frozenset[int]
    named: Named


def shares(module: nn.Module, is_expert: Callable[[nn.Parameter], bool]) -> list[Share]:
    """Every parameter of ``module`` in one share: a module not in parts has one, and one for experts."""
    parts, apart = [module], frozenset[int]()
    if isinstance(module, Parts):
        parts, apart = list(module.parts), module.apart
    owners: dict[int, set[int]] = {}
    for number, part in enumerate(parts):
        for param in part.parameters():
            owners.setdefault(id(param), set()).add(number)
    found: dict[tuple[frozenset[int], bool, bool], Named] = {}
    for name, param in module.named_parameters():
        key = (frozenset(owners[id(param)]), id(param) in apart, is_expert(param))
        found.setdefault(key, []).append((name, param))
    return [Share(numbers, named) for (numbers, _, _), named in found.items()]
