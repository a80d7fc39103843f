"""Units of ZeRO-3: which parameters of a module form one, and how they come and go together."""

from collections.abc import Callable, Hashable, Sequence

from torch import nn

from pdtlib.engine.data_parallel.flat import Flat
from pdtlib.engine.data_parallel.parts import Named
from pdtlib.engine.pending import Pending
from pdtlib.engine.transfers import start_all_gather
from pdtlib.plan.sharding import ROOT, group_units


class Unit:
    """Parameters that are gathered together and freed together."""

    def __init__(self, name: str, owners: frozenset[int]) -> None:
        self.name = name
        self.owners = owners  # numbers of the parts that it belongs to
        self.flats: list[Flat] = []
        self.open_calls = 0  # forward passes whose backward pass is still to come
        self.entered = False  # whether the block was ever called
        self._gathering: list[Pending] = []

    def start_gather(self, phase: str) -> None:
        """Start to gather whatever is not gathered yet."""
        for flat in self.flats:
            if not flat.params.allocated:
                flat.show()
                whole, shard = flat.params.tensor, flat.shard
                self._gathering.append(start_all_gather(whole, shard, flat.group, phase=phase))

    def gather(self, phase: str) -> None:
        """Return when all parameters are in place."""
        self.start_gather(phase)
        self._arrive()

    def _arrive(self) -> None:
        for pending in self._gathering:
            pending.wait()
        self._gathering.clear()

    def free(self) -> None:
        """Free the whole parameters."""
        self._arrive()
        for flat in self.flats:
            if flat.params.allocated:
                flat.hide()


def default_blocks(module: nn.Module) -> list[nn.Module]:
    """The members of every outermost nn.ModuleList, which is where models keep their layers.

    A member that only holds modules (a list of lists, or of dicts) is never called: its members are taken.
    """
    found: list[nn.Module] = []
    inside: set[int] = set()
    for child in module.modules():
        if isinstance(child, nn.ModuleList) and id(child) not in inside:
            found += [part for member in child for part in _callable_parts(member)]
            inside |= {id(below) for below in child.modules()}
    return found


def _is_callable(module: nn.Module) -> bool:
    return type(module).forward is not nn.Module.forward


def _callable_parts(module: nn.Module) -> list[nn.Module]:
    if _is_callable(module):
        return [module]
    return [part for child in module.children() for part in _callable_parts(child)]


def unit_members(
    module: nn.Module, blocks: Sequence[nn.Module] | None, kind_of: Callable[[nn.Parameter], Hashable]
) -> list[tuple[str, nn.Module | None, list[Named]]]:
    """(name, block, parameters) of every unit, the root (block None) first.

    A parameter that several blocks share, or a block and the root, belongs to the root. The parameters of a
    unit come in one list for each dtype, for frozen and trainable ones and for each ``kind_of`` them, since a
    flat buffer holds one kind. Raises ValueError for a block that is not part of ``module``, has no forward
    or lies within another block.
    """
    wanted = default_blocks(module) if blocks is None else list(blocks)
    block_names = _names(module, wanted)
    uses: dict[int, list[str]] = {}
    params: dict[int, nn.Parameter] = {}
    for name, param in module.named_parameters(remove_duplicate=False):
        uses.setdefault(id(param), []).append(name)
        params[id(param)] = param
    owner: dict[str, int] = {}
    for key, names in uses.items():
        homes = {unit.name for unit in group_units(names, list(block_names))}
        name = names[0] if len(homes) == 1 else names[0].replace(".", "/")  # without a prefix: the root's
        owner[name] = key
    members = []
    for unit in group_units(owner, list(block_names)):
        named = [(uses[owner[name]][0], params[owner[name]]) for name in unit.members]
        members.append(
            (unit.name, None if unit.name == ROOT else block_names[unit.name], _by_kind(named, kind_of))
        )
    return members


def _names(module: nn.Module, blocks: Sequence[nn.Module]) -> dict[str, nn.Module]:
    names = {id(child): name for name, child in module.named_modules()}
    found: dict[str, nn.Module] = {}
    for block in blocks:
        if not names.get(id(block)):
            raise ValueError(
                f"blocks: a {type(block).__name__} that is no submodule of {type(module).__name__}"
            )
        if not _is_callable(block):
            name = names[id(block)]
            raise ValueError(f"blocks: {name} is a {type(block).__name__}, which has no forward to call")
        found[names[id(block)]] = block
    for name in found:
        outer = [other for other in found if name.startswith(f"{other}.")]
        if outer:
            raise ValueError(f"blocks: {name} lies within {outer[0]}; give one of them")
    return found


def _by_kind(named: Named, kind_of: Callable[[nn.Parameter], Hashable]) -> list[Named]:
    kinds: dict[object, Named] = {}
    for name, param in named:
        kinds.setdefault((param.dtype, param.requires_grad, kind_of(param)), []).append((name, param))
    return list(kinds.values())
