"""From a reader's lists of action texts to a schedule's table, and what is wrong in the reader's terms."""

from collections.abc import Sequence

from pdtlib.plan.schedule import Act, Layout, Schedule


class NoTable(Exception):
    """The answer is no table of actions; the text says what it is instead."""


def program(got: object) -> tuple[Act, ...]:
    """One stage's actions. Raises NoTable."""
    if got is None:
        raise NoTable("The function returned None. Is a return statement missing?")
    if not isinstance(got, list | tuple):
        raise NoTable(f"Return a list of texts such as 'F0', not a {type(got).__name__}.")
    acts = []
    for item in got:
        if not isinstance(item, str):
            raise NoTable(f"An action is a text such as 'F0'; one of yours is {item!r}.")
        try:
            acts.append(Act.parse(item))
        except ValueError:
            raise NoTable(
                f"{item!r} is no action: write F, B or W and the micro-batch, as in 'F0'."
            ) from None
    return tuple(acts)


def programs(got: object, stages: int) -> tuple[tuple[Act, ...], ...]:
    """A list of programs, one a stage. Raises NoTable."""
    if got is None:
        raise NoTable("The function returned None. Is a return statement missing?")
    if not isinstance(got, list | tuple) or len(got) != stages:
        raise NoTable(f"Return a list of {stages} programs, one for each stage.")
    return tuple(map(program, got))


def table(name: str, acts: Sequence[tuple[Act, ...]], *, microbatches: int, chunks: int = 1) -> Schedule:
    """A schedule of these programs, one a stage, looped over ``chunks`` chunks."""
    layout = Layout(stages=len(acts), chunks=chunks)
    return Schedule(name=name, layout=layout, microbatches=microbatches, programs=tuple(acts))


def texts(acts: Sequence[Act]) -> str:
    """A program on one line, cut where it is long."""
    words = [str(act) for act in acts]
    return " ".join(words if len(words) <= 24 else [*words[:24], "…"])
