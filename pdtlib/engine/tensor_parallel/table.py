"""Which module becomes what under tensor parallelism: a table from names to styles, for any model.

A user's own model needs a table and nothing else. This is one for a two-matrix MLP inside each member of
``blocks``::

    {"blocks.*.mlp": ColumnCut(("up",)), "blocks.*.mlp.down": RowCut()}

Every rank builds the whole module; :func:`tensor_parallel` keeps this rank's part of rank 0's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from pdtlib.engine.data_parallel.cut import ModelCut
from pdtlib.engine.mesh import Group
from pdtlib.engine.models.moe import MoE
from pdtlib.engine.tensor_parallel.layers import (
    ColumnLinear,
    Columns,
    RowLinear,
    VocabEmbedding,
    VocabLinear,
    cut_parameter,
    cut_vocabulary,
    vocab_output,
)
from pdtlib.engine.tensor_parallel.random import with_own_stream
from pdtlib.engine.tensor_parallel.regions import (
    copy_to,
    gather_sequence,
    own_positions,
    reduce_from,
    scatter_sequence,
)
from pdtlib.engine.transfers import start_broadcast
from pdtlib.plan.spec import Model


@dataclass(frozen=True)
class ColumnCut:
    """Children of the module that all read its input: cut by columns, in whole multiples of ``unit`` columns.

    ``sections`` are the columns of what a fused child computes, such as (q, k, v): each is cut by itself.
    ``shared`` children are whole on every rank but see its columns alone, so that their gradients are parts
    of a sum. ``repeated`` children, where there are fewer units than ranks, are the same on neighbours.
    ``own_randomness``: dropout inside the module works on this rank's part, so it draws from a stream of its
    own.
    """

    children: tuple[str, ...]
    unit: int = 1
    sections: tuple[int, ...] = ()
    shared: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()
    own_randomness: bool = False


@dataclass(frozen=True)
class RowCut:
    """A linear layer whose input is cut: the end of a region."""


@dataclass(frozen=True)
class VocabCut:
    """An embedding, or the linear layer that gives logits, cut by the vocabulary; they may share a weight."""


@dataclass(frozen=True)
class ExpertCut:
    """A :class:`pdtlib.engine.models.MoE`: each expert is cut like an MLP, and the whole block is one region,
    router included, whose gradient is then a part of a sum."""


@dataclass(frozen=True)
class OutputCut:
    """The module's attribute ``output``, a function of (x, weight), gives this rank's logits.

    Under sequence parallelism its ``sequence_parts`` become the group's ranks.
    """


@dataclass(frozen=True)
class PositionCut:
    """Under sequence parallelism, keep this rank's slice of the module's output along ``dim``."""

    dim: int = 0


Style = ColumnCut | RowCut | ExpertCut | VocabCut | OutputCut | PositionCut


def transformer_table(model: Model, *, first: bool = True, last: bool = True) -> dict[str, Style]:
    """The table of :class:`pdtlib.engine.models.Transformer`, GPT or Llama style, or of a part of it."""
    gated = model.activation == "swiglu"
    table: dict[str, Style] = {
        "": OutputCut(),
        "layers.*.attn": ColumnCut(
            ("q", "k", "v"),
            unit=model.head_dim,
            shared=("q_norm", "k_norm") if model.qk_norm else (),
            repeated=("k", "v"),
            own_randomness=model.dropout > 0,
        ),
        "layers.*.attn.o": RowCut(),
    }
    if model.moe is None:
        table["layers.*.mlp"] = ColumnCut(("gate", "up") if gated else ("up",))
        table["layers.*.mlp.down"] = RowCut()
    else:
        table["layers.*.moe"] = ExpertCut()
    if first or (last and model.tied_embeddings):
        table["embed"] = VocabCut()
    if first and model.positions == "learned":
        table["positions"] = PositionCut()
    if last and not model.tied_embeddings:
        table["head"] = VocabCut()
    return table


def tensor_parallel(
    module: nn.Module, group: Group, *, table: Mapping[str, Style], sequence: bool = False
) -> ModelCut:
    """Cut ``module`` in place by ``table`` and return what the optimizer must know.

    Names are patterns (``layers.*.attn``). Parameters keep their names; what no style cuts stays whole on
    every rank. With ``sequence`` the activations between regions are slices of the sequence. Raises
    ValueError for a pattern that matches nothing, a style that does not fit its module, or sizes that the
    group does not divide.
    """
    if group.size == 1:
        return ModelCut(group, frozenset(), frozenset())
    for tensor in (*module.parameters(), *module.buffers()):
        whole = tensor.detach().contiguous()
        start_broadcast(whole, group, phase="init").wait()
        tensor.detach().copy_(whole)
    cutter = Cutter(module, group, sequence=sequence)
    for pattern, style in table.items():
        names = [name for name, _ in module.named_modules() if fnmatchcase(name, pattern)]
        if not names:
            raise ValueError(f"table: {pattern!r} matches no module of {type(module).__name__}")
        for name in names:
            cutter.apply(style, name)
    if sequence:
        with_own_stream(module, group)
    replicated = frozenset(id(param) for param in module.parameters() if id(param) not in cutter.cut)
    parts = replicated if sequence else frozenset(cutter.shared)
    return ModelCut(group, replicated, parts, frozenset(cutter.repeated), cutter.repeaters)


class Cutter:
    """Replaces modules one after the other and notes which parameters it has cut."""

    def __init__(self, root: nn.Module, group: Group, *, sequence: bool) -> None:
        self.root, self.group, self.sequence = root, group, sequence
        self.cut: set[int] = set()
        self.shared: set[int] = set()
        self.repeated: set[int] = set()
        self.repeaters: Group | None = None
        self._vocabularies: dict[int, nn.Parameter] = {}  # by the whole weight, so that tied ones stay tied
        self._wholes: list[torch.Tensor] = []  # kept alive, so that no id is given twice

    def apply(self, style: Style, name: str) -> None:
        module = self.root.get_submodule(name)
        if isinstance(style, ColumnCut):
            self._columns(style, name, module)
        elif isinstance(style, RowCut):
            row = RowLinear(_linear(module, name), self.group, sequence=self.sequence)
            self._replace(name, row)
            self.cut.add(id(row.weight))
        elif isinstance(style, ExpertCut):
            self._experts(name, module)
        elif isinstance(style, VocabCut):
            self._vocabulary(name, module)
        elif isinstance(style, OutputCut):
            if not callable(getattr(module, "output", None)):
                raise ValueError(f"table: {type(module).__name__} {name!r} has no function named output")
            vars(module)["output"] = vocab_output(self.group, sequence=self.sequence)
            if self.sequence:
                vars(module)["sequence_parts"] = self.group.size
        elif self.sequence:
            module.register_forward_hook(
                lambda module, args, output: own_positions(output, self.group, dim=style.dim)
            )

    def _columns(self, style: ColumnCut, name: str, module: nn.Module) -> None:
        columns = Columns(self.group, sequence=self.sequence)
        for child in style.children:
            full_name = f"{name}.{child}"
            linear = _linear(module.get_submodule(child), full_name)
            repeats = self._repeats(style, child, linear.out_features)
            for size in style.sections or (linear.out_features * repeats,):
                if size % (style.unit * self.group.size):
                    raise ValueError(
                        f"{full_name}: {size // style.unit} parts of {style.unit} columns do not divide by "
                        f"tp={self.group.size}"
                    )
            cut = ColumnLinear(linear, columns, sections=style.sections, repeats=repeats)
            self._replace(full_name, cut)
            ids = {id(param) for param in cut.parameters()}
            self.cut |= ids
            if repeats > 1:
                self.repeated |= ids
                self.repeaters = self.repeaters or neighbours(self.group, repeats)
        for child in style.shared:
            self.shared |= {id(param) for param in module.get_submodule(child).parameters()}
        if style.own_randomness and not self.sequence:
            with_own_stream(module, self.group)

    def _repeats(self, style: ColumnCut, child: str, columns: int) -> int:
        """How many neighbours have the same columns of a child: 1, unless its units are too few."""
        units, size = columns // style.unit, self.group.size
        fewer = child in style.repeated and not style.sections and 0 < units < size
        return size // units if fewer and size % units == 0 else 1

    def _experts(self, name: str, module: nn.Module) -> None:
        if not isinstance(module, MoE):
            raise ValueError(f"table: {name} is a {type(module).__name__}; this style needs an MoE")
        begin, end = (gather_sequence, scatter_sequence) if self.sequence else (copy_to, reduce_from)
        module.begin, module.end = partial(begin, group=self.group), partial(end, group=self.group)
        if module.balance is not None:
            module.balance.copies = self.group.size
        self.shared |= {id(param) for param in module.router.parameters()}
        for expert in module.experts.values():
            for child, linear in expert.named_children():
                assert isinstance(linear, nn.Linear)
                linear.weight = cut_parameter(linear.weight, self.group, dim=1 if child == "down" else 0)
            self.cut |= {id(param) for param in expert.parameters()}

    def _vocabulary(self, name: str, module: nn.Module) -> None:
        if not isinstance(module, nn.Embedding | nn.Linear) or getattr(module, "bias", None) is not None:
            raise ValueError(f"table: {name} must be an nn.Embedding or an nn.Linear without bias")
        whole = module.weight
        self._wholes.append(whole)
        if id(whole) not in self._vocabularies:
            self._vocabularies[id(whole)] = cut_vocabulary(whole, self.group)
        weight = self._vocabularies[id(whole)]
        if isinstance(module, nn.Embedding):
            vocab = module.num_embeddings
            self._replace(name, VocabEmbedding(weight, self.group, vocab=vocab, sequence=self.sequence))
        else:
            self._replace(name, VocabLinear(weight, self.group, sequence=self.sequence))
        self.cut.add(id(weight))

    def _replace(self, name: str, module: nn.Module) -> None:
        owner, _, leaf = name.rpartition(".")
        setattr(self.root.get_submodule(owner), leaf, module)


def neighbours(group: Group, size: int) -> Group:
    """The run of ``size`` ranks of the group that this rank is in. Called by all ranks of the group."""
    if size == group.size:
        return group
    first = group.rank // size * size
    ranks = group.ranks[first : first + size]
    process_group = dist.new_group(list(ranks), use_local_synchronization=True)
    return Group(group.axis, process_group, ranks, group.rank - first, ledger=group.ledger)


def _linear(module: nn.Module, name: str) -> nn.Linear:
    if not isinstance(module, nn.Linear):
        raise ValueError(f"table: {name} is a {type(module).__name__}; this style needs an nn.Linear")
    return module
