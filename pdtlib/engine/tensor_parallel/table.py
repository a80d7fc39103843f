"""Which module becomes what under tensor parallelism: a table from names to styles, for any model.

A user's own model needs a table and nothing else. This is one for a two-matrix MLP inside each member of
``blocks``::

    {"blocks.*.mlp": ColumnCut(("up",)), "blocks.*.mlp.down": RowCut()}

Every rank builds the whole module; :func:`tensor_parallel` keeps this rank's part of rank 0's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import nn

from pdtlib.engine.collectives import start_broadcast
from pdtlib.engine.data_parallel.cut import ModelCut
from pdtlib.engine.mesh import Group
from pdtlib.engine.tensor_parallel.layers import (
    ColumnLinear,
    Columns,
    RowLinear,
    VocabEmbedding,
    VocabLinear,
    cut_vocabulary,
    vocab_output,
)
from pdtlib.engine.tensor_parallel.random import with_own_stream
from pdtlib.engine.tensor_parallel.regions import own_positions
from pdtlib.plan.spec import Model


@dataclass(frozen=True)
class ColumnCut:
    """Children of the module that all read its input: cut by columns, in whole multiples of ``unit`` columns.

    ``sections`` are the columns of what a fused child computes, such as (q, k, v): each is cut by itself.
    ``shared`` children are whole on every rank but see its columns alone, so that their gradients are parts
    of a sum. ``own_randomness``: dropout inside the module works on this rank's part, so it draws from a
    stream of its own.
    """

    children: tuple[str, ...]
    unit: int = 1
    sections: tuple[int, ...] = ()
    shared: tuple[str, ...] = ()
    own_randomness: bool = False


@dataclass(frozen=True)
class RowCut:
    """A linear layer whose input is cut: the end of a region."""


@dataclass(frozen=True)
class VocabCut:
    """An embedding, or the linear layer that gives logits, cut by the vocabulary; they may share a weight."""


@dataclass(frozen=True)
class OutputCut:
    """The module's attribute ``output``, a function of (x, weight), gives this rank's logits."""


@dataclass(frozen=True)
class PositionCut:
    """Under sequence parallelism, keep this rank's slice of the module's output along ``dim``."""

    dim: int = 0


Style = ColumnCut | RowCut | VocabCut | OutputCut | PositionCut


def transformer_table(model: Model) -> dict[str, Style]:
    """The table of :class:`pdtlib.engine.models.Transformer`, GPT or Llama style.

    Raises ValueError for a mixture of experts.
    """
    gated = model.activation == "swiglu"
    table: dict[str, Style] = {
        "": OutputCut(),
        "embed": VocabCut(),
        "layers.*.attn": ColumnCut(
            ("q", "k", "v"),
            unit=model.head_dim,
            shared=("q_norm", "k_norm") if model.qk_norm else (),
            own_randomness=model.dropout > 0,
        ),
        "layers.*.attn.o": RowCut(),
        "layers.*.mlp": ColumnCut(("gate", "up") if gated else ("up",)),
        "layers.*.mlp.down": RowCut(),
    }
    if model.positions == "learned":
        table["positions"] = PositionCut()
    if not model.tied_embeddings:
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
    return ModelCut(group, replicated, replicated if sequence else frozenset(cutter.shared))


class Cutter:
    """Replaces modules one after the other and notes which parameters it has cut."""

    def __init__(self, root: nn.Module, group: Group, *, sequence: bool) -> None:
        self.root, self.group, self.sequence = root, group, sequence
        self.cut: set[int] = set()
        self.shared: set[int] = set()
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
        elif isinstance(style, VocabCut):
            self._vocabulary(name, module)
        elif isinstance(style, OutputCut):
            if not callable(getattr(module, "output", None)):
                raise ValueError(f"table: {type(module).__name__} {name!r} has no function named output")
            vars(module)["output"] = vocab_output(self.group, sequence=self.sequence)
        elif self.sequence:
            module.register_forward_hook(
                lambda module, args, output: own_positions(output, self.group, dim=style.dim)
            )

    def _columns(self, style: ColumnCut, name: str, module: nn.Module) -> None:
        columns = Columns(self.group, sequence=self.sequence)
        for child in style.children:
            full_name = f"{name}.{child}"
            linear = _linear(module.get_submodule(child), full_name)
            for size in style.sections or (linear.out_features,):
                if size % (style.unit * self.group.size):
                    raise ValueError(
                        f"{full_name}: {size // style.unit} parts of {style.unit} columns do not divide by "
                        f"tp={self.group.size}"
                    )
            cut = ColumnLinear(linear, columns, sections=style.sections)
            self._replace(full_name, cut)
            self.cut |= {id(param) for param in cut.parameters()}
        for child in style.shared:
            self.shared |= {id(param) for param in module.get_submodule(child).parameters()}
        if style.own_randomness and not self.sequence:
            with_own_stream(module, self.group)

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


def _linear(module: nn.Module, name: str) -> nn.Linear:
    if not isinstance(module, nn.Linear):
        raise ValueError(f"table: {name} is a {type(module).__name__}; this style needs an nn.Linear")
    return module
