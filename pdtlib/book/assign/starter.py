"""A starter made from a solution: chosen functions lose their bodies; and an answer put back into the lab.

A lab says in its module-level literal ``ASSIGNED`` which of its functions a class writes. The starter is the
lab's own file with those emptied: signature and docstring stay. For grading only those functions, and what
the answer adds on its own, are taken from a submission; what measures and compares is the lab's.
"""

from __future__ import annotations

import ast

TODO = 'raise NotImplementedError("write this function")'
Function = ast.FunctionDef | ast.AsyncFunctionDef


class NotAnAnswer(ValueError):
    """A submission that cannot be put into the lab; the message says why."""


def assigned(source: str) -> tuple[str, ...]:
    """The functions that a lab assigns, by its literal ``ASSIGNED``; none if it has none."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and any(getattr(t, "id", None) == "ASSIGNED" for t in node.targets):
            return tuple(ast.literal_eval(node.value))
    return ()


def emptied(source: str, names: tuple[str, ...]) -> str:
    """The source with the bodies of these functions replaced by one line that raises.

    Raises ``ValueError`` for a name that is no top-level function of the source.

    >>> print(emptied('def f(x):\\n    "Twice x."\\n    return 2 * x\\n', ("f",)))
    def f(x):
        "Twice x."
        raise NotImplementedError("write this function")
    <BLANKLINE>
    """
    lines = source.splitlines(keepends=True)
    functions = _functions(source)
    for name in sorted(names, key=lambda name: -_function(functions, name).lineno):
        function = functions[name]
        documented = ast.get_docstring(function, clean=False) is not None
        body = function.body[1:] if documented else function.body
        last = function.end_lineno or function.lineno
        first = body[0].lineno if body else last + 1
        if body and first == function.lineno:  # all in one line
            head = lines[first - 1].encode()[: body[0].col_offset].decode().rstrip()
            lines[first - 1 : last] = [f"{head}\n    {TODO}\n"]
            continue
        indent = " " * function.body[0].col_offset
        lines[first - 1 : last] = [f"{indent}{TODO}\n"]
    return "".join(lines)


def grafted(lab: str, answer: str, names: tuple[str, ...]) -> str:
    """The lab with these functions as the answer has them, and with what the answer adds at top level.

    Raises :class:`NotAnAnswer` where the answer is no Python or lacks a function.
    """
    try:
        functions = _functions(answer)
        added = _added(lab, answer)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f"line {error.lineno}: " if isinstance(error, SyntaxError) and error.lineno else ""
        raise NotAnAnswer(f"the file cannot be read as Python: {line}{error}") from None
    if absent := [name for name in names if name not in functions]:
        raise NotAnAnswer(f"the file defines no {', '.join(absent)}")
    lines = lab.splitlines(keepends=True)
    own = _functions(lab)
    order = sorted(names, key=lambda name: -_first_line(own[name]))
    for name in order:
        lines[_first_line(own[name]) - 1 : own[name].end_lineno] = [_text(answer, functions[name])]
    lines.insert(_first_line(own[order[-1]]) - 1, "".join(f"{_text(answer, node)}\n\n" for node in added))
    return "".join(lines)


def _functions(source: str) -> dict[str, Function]:
    nodes = ast.parse(source).body
    return {node.name: node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def _function(functions: dict[str, Function], name: str) -> Function:
    if name not in functions:
        raise ValueError(f"ASSIGNED: {name!r}; valid: the lab's functions, {', '.join(functions)}")
    return functions[name]


def _first_line(node: ast.stmt) -> int:
    """Decorators included."""
    return min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", ()))])


def _text(source: str, node: ast.stmt) -> str:
    lines = source.splitlines(keepends=True)[_first_line(node) - 1 : node.end_lineno]
    text = "".join(lines)
    return text if text.endswith("\n") else f"{text}\n"


def _added(lab: str, answer: str) -> list[ast.stmt]:
    """Imports, functions, classes and constants of the answer that the lab does not have."""
    known = {ast.dump(node) for node in ast.parse(lab).body if isinstance(node, ast.Import | ast.ImportFrom)}
    names = {name for node in ast.parse(lab).body for name in _names(node)}
    found: list[ast.stmt] = []
    for node in ast.parse(answer).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            future = getattr(node, "module", "") == "__future__"
            if ast.dump(node) not in known and not future:
                found.append(node)
        elif (defined := _names(node)) and not set(defined) & names:
            found.append(node)
    return found


def _names(node: ast.stmt) -> tuple[str, ...]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return (node.name,)
    if isinstance(node, ast.Assign):
        return tuple(t.id for t in node.targets if isinstance(t, ast.Name))
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return (node.target.id,)
    return ()
