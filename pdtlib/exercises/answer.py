"""The source of an answer: text, a file, or functions and classes written in a notebook.

A function written in a notebook leans on names of other cells. Its source is taken together with those it
uses: functions, classes, imported modules and plain constants.
"""

import ast
import inspect
import linecache
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

_PLAIN = (int, float, bool, str, bytes, type(None))


def source_of(*answer: Any) -> str:
    """Python source from one text or path, or from any number of functions and classes.

    Raises:
        ValueError: none of these, an unreadable file, or an object whose source is not to be found.
    """
    if len(answer) == 1 and isinstance(answer[0], Path):
        return _read(answer[0])
    if len(answer) == 1 and isinstance(answer[0], str):
        text = answer[0]
        return _read(Path(text)) if "\n" not in text and text.endswith(".py") else text
    if not answer or not all(isinstance(item, FunctionType | type) for item in answer):
        raise ValueError(
            f"answer {answer!r}: give source text, a path, or the functions and classes you wrote"
        )
    parts: dict[str, str] = {}
    for item in answer:
        _collect(item, parts)
    return "\n\n".join(parts.values()) + "\n"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None


def _collect(item: FunctionType | type, parts: dict[str, str]) -> None:
    """Put the sources of what ``item`` uses, then its own, into ``parts``, each once."""
    name = item.__name__
    if name in parts:
        return
    functions = [item] if isinstance(item, FunctionType) else list(_methods(item))
    source = _source(item, functions)
    parts[name] = ""  # held against recursion; filled below, after what it needs
    # Names, not the code's: base classes, decorators and defaults are used, too.
    used = {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
    for function in functions:
        for used_name in sorted(used & function.__globals__.keys() - parts.keys()):
            _collect_value(used_name, function.__globals__[used_name], parts)
    del parts[name]
    parts[name] = source


def _collect_value(name: str, value: Any, parts: dict[str, str]) -> None:
    if isinstance(value, ModuleType):
        parts[name] = f"import {value.__name__} as {name}"
    elif isinstance(value, _PLAIN):
        parts[name] = f"{name} = {value!r}"
    elif isinstance(value, FunctionType | type) and value.__module__ == "__main__":
        _collect(value, parts)
    elif isinstance(value, FunctionType | type) or callable(value):
        module = getattr(value, "__module__", None)
        if module and hasattr(value, "__name__"):
            parts[name] = f"from {module} import {value.__name__} as {name}"


def _methods(cls: type) -> Iterator[FunctionType]:
    for value in vars(cls).values():
        value = getattr(value, "__func__", value)
        if isinstance(value, FunctionType):
            yield value


def _source(item: FunctionType | type, functions: list[FunctionType]) -> str:
    """The text of ``item``; a class of a notebook is looked up in the cell of its methods."""
    if isinstance(item, FunctionType):
        try:
            return textwrap.dedent(inspect.getsource(item))
        except OSError:
            raise ValueError(f"the source of {item.__name__} is not to be found: pass it as text") from None
    for function in functions:
        lines = linecache.getlines(function.__code__.co_filename)
        for node in ast.walk(ast.parse("".join(lines))):
            if isinstance(node, ast.ClassDef) and node.name == item.__name__:
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                return textwrap.dedent("".join(lines[first - 1 : node.end_lineno]))
    raise ValueError(f"the source of class {item.__name__} is not to be found: pass it as text")
