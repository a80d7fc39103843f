"""Every place of the engine where something is sent or divided, found in its source, and how to remove it.

* **Messages**: each use of a function of :data:`MESSAGES`, of torch.distributed's own or of a group's. In its
  place a mutant uses the function of the same name in :mod:`removed_calls`.
* **Divisions**: ``a / b``, ``a /= b``, ``a.div_(b)``, a mean, an average, a power with a negative exponent;
  and products with a factor that is called a scale, a factor or a size. The mutant keeps ``a``.

Joining paths is no division, and what stands in an f-string is a message's text. What else is left out stands
in :data:`mutants_table.EXCLUDED`.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MESSAGES = {
    "start_all_reduce", "start_reduce_scatter", "start_all_gather", "start_all_to_all", "start_ring_shift",
    "start_broadcast", "start_sum", "start_gather_sequence", "start_scatter_sum", "take_over",
    "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast",
    "copy_to", "reduce_from", "gather_sequence", "scatter_sequence",
}  # fmt: skip
OF_TORCH = {
    "all_reduce", "all_gather", "all_gather_object", "all_to_all", "all_to_all_single", "all_gather_single",
    "all_gather_into_tensor", "reduce_scatter_single", "reduce_scatter_tensor", "broadcast",
    "broadcast_object_list", "batch_isend_irecv", "barrier", "gather_object", "isend", "irecv",
}  # fmt: skip
OF_GROUP = {"isend", "irecv"}
DIVIDING = {"div", "div_", "mul_", "average", "mean", "rsqrt", "reciprocal"}
SCALES = ("scale", "factor", "num_valid", "group.size /")
PATHS = {"out", "path", "directory", "run", "folder", "self.folder", "options.out"}
REMOVED = "from pdtlib.engine import removed as _removed\n"


@dataclass(frozen=True)
class Site:
    """One place. ``start`` and ``end`` are offsets into the module's bytes, where ``instead`` goes."""

    module: str
    function: str
    kind: str
    text: str
    number: int
    start: int
    end: int
    instead: str

    @property
    def name(self) -> str:
        """Says the place without line numbers, which move."""
        times = f" ({self.number})" if self.number > 1 else ""
        return f"{self.module}::{self.function}: {self.text}{times}"

    def mutated(self, source: bytes) -> bytes:
        """The module without what stands here."""
        changed = source[: self.start] + self.instead.encode() + source[self.end :]
        return changed + REMOVED.encode() if "_removed" in self.instead else changed


def sites_of(root: Path, module: str) -> list[Site]:
    """The places of one module, in their order. ``module`` is its path below ``root``."""
    source = (root / module).read_bytes()
    lines = [0]
    for line in source.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))

    def span(node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return lines[node.lineno - 1] + node.col_offset, lines[node.end_lineno - 1] + node.end_col_offset

    found, seen = [], Counter()
    for function, node, shown in _walk(ast.parse(source)):
        change = _message(node) or _division(node)
        if change is not None:
            kind, instead = change
            text = ast.unparse(shown if kind == "message" else node)
            seen[function, text] += 1
            found.append(Site(module, function, kind, text, seen[function, text], *span(node), instead))
    return sorted(found, key=lambda site: site.start)


def every_site(root: Path) -> list[Site]:
    """The places of all modules of the engine."""
    modules = sorted(str(path.relative_to(root)) for path in (root / "pdtlib/engine").rglob("*.py"))
    modules = [module for module in modules if module != "pdtlib/engine/removed.py"]  # what mutants call
    return [site for module in modules for site in sites_of(root, module)]


def _walk(tree: ast.AST, function: str = "") -> Iterator[tuple[str, ast.AST, ast.AST]]:
    """(qualified name of the function, node, what to show of it: the whole call if it is called)."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.JoinedStr):
            continue
        inside = function
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            inside = f"{function}.{node.name}" if function else node.name
        used = tree if isinstance(tree, ast.Call) and tree.func is node else node
        yield function, node, used
        yield from _walk(node, inside)


def _message(node: ast.AST) -> tuple[str, str] | None:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in MESSAGES:
        return "message", f"_removed.{node.id}"
    if isinstance(node, ast.Attribute):
        of_group = ast.unparse(node.value).endswith("group") and node.attr in OF_GROUP
        if of_group or (ast.unparse(node.value) == "dist" and node.attr in OF_TORCH):
            return "message", "_removed.of_torch"
    return None


def _division(node: ast.AST) -> tuple[str, str] | None:
    instead = None
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div | ast.Mult):
        instead = "pass"
    elif isinstance(node, ast.BinOp):
        left, right = ast.unparse(node.left), ast.unparse(node.right)
        if isinstance(node.op, ast.Div) and not _joins_paths(node):
            instead = f"({left})"
        elif isinstance(node.op, ast.Pow) and right == "-0.5":
            instead = "1.0"
        elif isinstance(node.op, ast.Mult) and any(word in right for word in SCALES):
            instead = f"({left})"
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in DIVIDING:
        instead = f"({ast.unparse(node.func.value)})"
        if node.func.attr == "mean":
            instead = ast.unparse(node).replace(".mean(", ".sum(")
    return None if instead is None else ("division", instead)


def _joins_paths(node: ast.BinOp) -> bool:
    if isinstance(node.left, ast.BinOp) and isinstance(node.left.op, ast.Div) and _joins_paths(node.left):
        return True
    if ast.unparse(node.left) in PATHS:
        return True
    return any(
        isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (node.left, node.right)
    )
