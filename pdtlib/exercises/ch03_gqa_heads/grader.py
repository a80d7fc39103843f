"""Grades which heads a rank has against :func:`pdtlib.plan.heads.rank_heads`."""

import random
from collections.abc import Iterator

from pdtlib.exercises.compare import shown
from pdtlib.exercises.report import Check
from pdtlib.exercises.source import ReaderCode, ReaderError, call
from pdtlib.plan import presets
from pdtlib.plan.heads import rank_heads

KNOWN = (
    ("GPT-2, no groups", "gpt2", 4),
    ("Llama 3 70B on 8 ranks", "llama3-70b", 8),
    ("Llama 3 70B on 16", "llama3-70b", 16),
)


def grade(code: ReaderCode, rng: random.Random) -> Iterator[Check]:
    """Known models, then hidden sizes of each kind, then sizes to be refused."""
    for title, preset, tp in KNOWN:
        model = presets.model(preset)
        yield _check(code, title, model.heads, model.kv_heads, tp)
    for title, heads, kv_heads, tp in _drawn(rng):
        yield _check(code, title, heads, kv_heads, tp)
    for title, heads, kv_heads, tp in _impossible(rng):
        yield _refused(code, title, heads, kv_heads, tp)


def _drawn(rng: random.Random) -> Iterator[tuple[str, int, int, int]]:
    few, factor, group = rng.choice((2, 3, 4)), rng.choice((2, 3)), rng.choice((2, 3))
    many = few * factor
    yield "fewer ranks than key and value heads", many * group, many, few
    yield "as many ranks as key and value heads", few * group, few, few
    yield "more ranks than key and value heads", many * group, few, many
    yield "one key and value head for all", many, 1, few
    yield "one rank", many * group, many, 1


def _impossible(rng: random.Random) -> Iterator[tuple[str, int, int, int]]:
    group = rng.choice((2, 4))
    yield "query heads that the ranks do not divide", 5 * group, 5, 3
    yield "groups of unequal size", 12, 8, 4
    yield "ranks and key and value heads that fit neither way", 12 * group, 6, 4


def _check(code: ReaderCode, title: str, heads: int, kv_heads: int, tp: int) -> Check:
    sizes = f"heads={heads}, kv_heads={kv_heads}, tp={tp}"
    for rank in range(tp):
        queries, keys = (list(part) for part in rank_heads(heads, kv_heads, tp=tp, rank=rank))
        try:
            got = call(code.function("rank_heads"), heads, kv_heads, tp, rank)
        except ReaderError as error:
            return Check(name=title, passed=False, message=f"{error}\nWith {sizes}, rank={rank}.")
        if not _two_lists(got):
            message = "Return two lists of ints: the query heads, and the key and value heads."
            return Check(name=title, passed=False, got=shown(got), message=message)
        if list(map(list, got)) != [queries, keys]:
            lesson = _lesson(got[0], got[1], queries, keys, heads // kv_heads)
            return Check(
                name=title,
                passed=False,
                expected=f"{queries}, {keys}",
                got=f"{list(got[0])}, {list(got[1])}",
                message=f"{lesson}\nWith {sizes}, rank={rank}.",
            )
    return Check(name=title, passed=True)


def _two_lists(got: object) -> bool:
    return (
        isinstance(got, tuple | list)
        and len(got) == 2
        and all(isinstance(part, tuple | list) and all(type(head) is int for head in part) for part in got)
    )


def _lesson(
    queries: list[int], keys: list[int], right_queries: list[int], right_keys: list[int], group: int
) -> str:
    if list(queries) != right_queries:
        return "Query heads are dealt out in runs: each rank the next heads // tp."
    if not keys:
        return (
            "This rank has queries but no keys: with more ranks than key and value heads, ranks share them."
        )
    needed = sorted({query // group for query in queries})
    if not set(needed) <= set(keys):
        return f"The rank's queries use key and value heads {needed}, and it does not hold them."
    return "The rank holds key and value heads that none of its queries use."


def _refused(code: ReaderCode, title: str, heads: int, kv_heads: int, tp: int) -> Check:
    name = f"refuses {title}"
    try:
        got = call(code.function("rank_heads"), heads, kv_heads, tp, 0)
    except ReaderError as error:
        if "ValueError" in str(error):
            return Check(name=name, passed=True)
        return Check(name=name, passed=False, message=f"Raise ValueError. {error}")
    return Check(
        name=name,
        passed=False,
        got=shown(got),
        message=f"heads={heads}, kv_heads={kv_heads}, tp={tp} can't be dealt out evenly: raise ValueError.",
    )
