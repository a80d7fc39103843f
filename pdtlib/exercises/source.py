"""The reader's source: compiled, run in its own namespace, its errors told with the reader's line.

Guards against mistakes and short cuts, not against an attacker: the code runs with the rights of the
interpreter that grades it.
"""

import builtins
import contextlib
import io
import linecache
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from types import ModuleType, TracebackType
from typing import Any, TextIO

FILENAME = "<your code>"
MAX_OUTPUT_CHARS = 20_000


class ReaderError(Exception):
    """The reader's code failed; the text says what and on which of the reader's lines."""


class ReaderCode:
    """One submission.

    Every :meth:`function` runs the source anew in a fresh namespace, so two calls share nothing through
    globals or default arguments: simulated ranks cannot pass data behind the communicator's back.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self._ran_before = False
        lines = source.splitlines(keepends=True)
        linecache.cache[FILENAME] = (len(source), None, lines, FILENAME)
        try:
            self._code = compile(source, FILENAME, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            raise ReaderError(_syntax_error(error)) from None

    def namespace(self) -> dict[str, Any]:
        """Run the source and return its globals. Top-level prints are shown the first time only."""
        module = ModuleType("your_code")
        replaced = {"__import__": _guarded_import, "input": _no_input}
        module.__dict__["__builtins__"] = {**vars(builtins), **replaced}
        quiet = contextlib.redirect_stdout(io.StringIO()) if self._ran_before else contextlib.nullcontext()
        with quiet, told():
            exec(self._code, module.__dict__)
        self._ran_before = True
        return module.__dict__

    def function(self, name: str) -> Callable[..., Any]:
        """The reader's function or class ``name``, from a fresh run of the source.

        Raises:
            ReaderError: the source fails, or defines no such callable.
        """
        namespace = self.namespace()
        found = namespace.get(name)
        if not callable(found):
            defined = sorted(key for key, value in namespace.items() if callable(value) and key[0] != "_")
            also = f" It defines {', '.join(defined)}." if defined else ""
            raise ReaderError(f"Your code defines no {name}.{also} Keep the name that the exercise asks for.")
        return found


def _guarded_import(name, globals=None, locals=None, fromlist=(), level=0) -> ModuleType:
    package = name.split(".")[0]
    if package == "pdtlib":
        raise ImportError(f"{name} holds the answer: in this exercise write it yourself, without pdtlib")
    if package in ("builtins", "importlib"):
        raise ImportError(f"{package} is not available in an exercise")
    return builtins.__import__(name, globals, locals, fromlist, level)


def _no_input(*_: object) -> str:
    raise RuntimeError("nobody answers input() while an exercise is graded: use the arguments")


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Turn whatever the reader's code raises inside into a ReaderError with the reader's lines."""
    try:
        yield
    except ReaderError:
        raise
    except BaseException as error:
        raise ReaderError(error_text(error)) from None


def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call the reader's function; raise ReaderError if it raises, SystemExit included."""
    with told():
        return function(*args, **kwargs)


def error_text(error: BaseException) -> str:
    """The error with the lines of the reader's code it passed through, without the grader's own."""
    steps = []
    for frame in _own_frames(error.__traceback__):
        steps.append(f"Line {frame.lineno}, in {frame.name}:\n    {frame.line}")
    if len(steps) > 6:
        steps = [*steps[:3], f"… {len(steps) - 6} more calls …", *steps[-3:]]
    name = type(error).__name__
    if isinstance(error, NotImplementedError):
        told_error = "NotImplementedError: this part is still to be written."
    else:
        # Addresses differ from run to run and say nothing.
        told_error = re.sub(r" at 0x[0-9a-fA-F]+", "", f"{name}: {error}" if str(error) else name)
    return "\n".join([*steps, told_error])


def traced_line(trace: str) -> str:
    """The innermost of the reader's lines in faulthandler's text: "line 3, in f", or nothing."""
    found = re.search(rf'File "{re.escape(FILENAME)}", line (\d+) in (\S+)', trace)
    return f"line {found[1]}, in {found[2]}" if found else ""


def _own_frames(trace: TracebackType | None) -> list[traceback.FrameSummary]:
    return [frame for frame in traceback.extract_tb(trace) if frame.filename == FILENAME]


def _syntax_error(error: SyntaxError | ValueError) -> str:
    if not isinstance(error, SyntaxError):
        return f"Your code cannot be read: {error}"
    text = (error.text or "").rstrip("\n")
    caret = " " * (max(error.offset or 1, 1) - 1) + "^"
    return f"Line {error.lineno}:\n    {text}\n    {caret}\n{type(error).__name__}: {error.msg}"


class _BoundedText(io.StringIO):
    """Keeps the first MAX_OUTPUT_CHARS characters, so that a print in a loop cannot fill the memory."""

    def __init__(self, echo: TextIO | None) -> None:
        super().__init__()
        self._echo = echo

    def write(self, text: str) -> int:
        room = MAX_OUTPUT_CHARS - self.tell()
        if room > 0:
            kept = text[:room] + ("\n… output cut here …\n" if len(text) > room else "")
            super().write(kept)
            if self._echo is not None:
                self._echo.write(kept)
                self._echo.flush()
        return len(text)


@contextlib.contextmanager
def captured(echo: TextIO | None = None) -> Iterator[io.StringIO]:
    """Collect what is printed to stdout and stderr inside; copy it to ``echo`` as it comes."""
    output = _BoundedText(echo)
    # A reader that closes or replaces sys.stdout must not take the grader's with it.
    before = sys.stdout, sys.stderr
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            yield output
    finally:
        sys.stdout, sys.stderr = before
