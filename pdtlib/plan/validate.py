"""Refuse a job that cannot work, with every problem at once: the field, the reason, values that would do.

Two passes: :func:`build` reads a dict (unknown fields, wrong kinds, values out of range); then
:func:`pdtlib.plan.layout.check_layout` looks at fields that must fit each other. The second pass needs a
complete job, so it runs only when the first found nothing.
"""

import difflib
import math
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args, get_type_hints

from pdtlib.plan import presets
from pdtlib.plan.batch import nearest_batches
from pdtlib.plan.hardware_file import read_hardware
from pdtlib.plan.layout import check_layout
from pdtlib.plan.spec import (
    Hardware,
    Job,
    JobError,
    Model,
    OneOf,
    Pairs,
    Parallel,
    Problem,
    Real,
    Rows,
    Text,
    Train,
    Whole,
)

SECTIONS: dict[str, type] = {"model": Model, "train": Train, "parallel": Parallel, "hardware": Hardware}
PRESETS = {"model": ("preset", presets.MODELS), "hardware": ("cluster", presets.CLUSTERS)}
FOLLOWERS = {
    # Fields whose usual value follows another field's.
    "model.hidden": ("model.head_dim", "model.ffn"),
    "model.heads": ("model.head_dim", "model.kv_heads"),
    "model.moe": ("model.ffn",),
    "model.activation": ("model.ffn", "model.norm", "model.positions", "model.biases"),
    "model.norm": ("model.positions", "model.biases"),
    "train.micro_batch": ("train.global_batch",),
    "parallel.dp": ("train.global_batch", "hardware.n_gpus"),
    "parallel.vpp": ("parallel.schedule",),
}


def validate(job: Job | Mapping[str, object]) -> list[Problem]:
    """Every problem of a job, or of a dict that should be one; an empty list means that it can work."""
    if isinstance(job, Job):
        problems = [
            problem for section in SECTIONS for problem in _check_kinds(section, getattr(job, section))
        ]
        return problems or check_layout(job)
    try:
        build(job)
    except JobError as error:
        return error.problems
    return []


def build(data: Mapping[str, object], *, folder: Path | None = None) -> Job:
    """Make a job from a dict as TOML or JSON give it, or raise :class:`JobError` with every problem.

    Names of hardware files are relative to ``folder``, by default the current one.
    """
    problems: list[Problem] = []
    if not isinstance(data, Mapping):
        raise JobError([Problem("", f"a job is a table of sections, not {_kind(data)}", tuple(SECTIONS))])
    problems += _unknown("", data, list(SECTIONS))
    made: dict[str, dict[str, Any]] = {}
    unknown: set[str] = set()
    for section, kind in SECTIONS.items():
        table = data.get(section, {})
        if not isinstance(table, Mapping):
            problems.append(Problem(section, f"must be a table of fields, not {_kind(table)}"))
            made[section] = {}
            unknown.add(section)
            continue
        table, found = _take_preset(section, table, folder)
        problems += found
        unknown |= {section for _ in found}
        made[section], found = _read(section, kind, table)
        problems += found
        unknown |= {".".join(problem.field.split(".")[:2]) for problem in found}
    unknown |= {follower for field in unknown for follower in FOLLOWERS.get(field, ())}
    job, found = _assemble(made, unknown)
    problems += [*found, *check_layout(job, unknown=unknown)]
    if problems:
        raise JobError(problems)
    return job


def _assemble(made: dict[str, dict[str, Any]], unknown: set[str]) -> tuple[Job, list[Problem]]:
    """The job, with 1 where a required number is not known; dp follows from n_gpus where it is left out."""
    required = [item.name for item in fields(Model) if item.default is MISSING]
    model = dict.fromkeys(required, 1) | made["model"]
    parallel, n_gpus = made["parallel"], made["hardware"].get("n_gpus")
    problems = []
    if "dp" not in parallel and n_gpus is not None:
        group = math.prod(parallel.get(axis, 1) for axis in ("tp", "pp", "cp"))
        parallel["dp"] = max(1, n_gpus // group)
        if n_gpus % group and not unknown & {f"parallel.{axis}" for axis in ("tp", "pp", "cp")}:
            near = nearest_batches(n_gpus, micro_batch=group, dp=1)
            problems = [
                Problem("hardware.n_gpus", f"{n_gpus} is not a multiple of tp x pp x cp = {group}", near)
            ]
            unknown |= {"parallel.dp", *FOLLOWERS["parallel.dp"]}
    job = Job(
        model=Model(**model),
        train=Train(**made["train"]),
        parallel=Parallel(**parallel),
        hardware=Hardware(**made["hardware"]),
    )
    return job, problems


def _take_preset(
    section: str, given: Mapping[str, object], folder: Path | None
) -> tuple[dict[str, object], list[Problem]]:
    """The fields given, over those of the preset or hardware file that is named among them."""
    table = dict(given)
    key, known = PRESETS.get(section, ("", {}))
    if key not in table:
        return table, []
    problems: list[Problem] = []
    name = table.pop(key)
    if section == "hardware" and isinstance(name, str) and name.endswith(".toml"):
        fields_of_file, problems = read_hardware(name, folder)
        return {**fields_of_file, **table}, problems
    if not isinstance(name, str) or name not in known:
        message = f"{name!r} is not a known preset" + _did_you_mean(name, known)
        problems.append(Problem(f"{section}.{key}", message, tuple(known)))
        name = next(iter(known))  # any will do: fields that a right name would give are not missing
    named = {"name": name} if section == "model" else {}
    return {**named, **known[name], **table}, problems


@lru_cache(maxsize=8)
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _read(path: str, kind: type, table: Mapping[str, object]) -> tuple[dict[str, Any], list[Problem]]:
    """The keyword arguments of a section, and what is wrong with it."""
    known = [item.name for item in fields(kind)]
    extra = [PRESETS[path][0]] if path in PRESETS else []
    problems = _unknown(path, table, [*known, *extra])
    values: dict[str, Any] = {}
    for item in fields(kind):
        where = f"{path}.{item.name}"
        if item.name not in table:
            if item.default is MISSING and item.default_factory is MISSING:
                problems.append(Problem(where, "is required"))
            continue
        value = table[item.name]
        hint = _hints(kind)[item.name]
        nested = _table_kind(hint)
        if nested is not None:
            read, found = _read_table(where, value, nested)
        else:
            read, found = _convert(where, value, hint)
        if not found:
            values[item.name] = read
        problems += found
    return values, problems


@lru_cache(maxsize=64)
def _table_kind(hint: Any) -> type | None:
    """The dataclass of a field that may hold a table, or nothing; None for other fields."""
    return next((kind for kind in get_args(hint) if isinstance(kind, type) and is_dataclass(kind)), None)


def _read_table(where: str, value: object, kind: type) -> tuple[object, list[Problem]]:
    if value is None:
        return None, []
    if isinstance(value, kind):
        return value, _check_kinds(where, value)
    if not isinstance(value, Mapping):
        *names, last = (item.name for item in fields(kind) if item.default is MISSING)
        return None, [Problem(where, f"must be a table of {', '.join(names)} and {last}, not {_kind(value)}")]
    values, problems = _read(where, kind, value)
    return (None if problems else kind(**values)), problems


def _read_rows(where: str, value: object, kind: type) -> tuple[object, list[Problem]]:
    if not isinstance(value, list | tuple):
        return value, [Problem(where, f"must be a list of tables, not {_kind(value)}")]
    found = [_read_table(f"{where}[{number}]", row, kind) for number, row in enumerate(value)]
    return tuple(row for row, _ in found), [problem for _, problems in found for problem in problems]


def _convert_pairs(where: str, value: object) -> tuple[object, list[Problem]]:
    pairs = value if isinstance(value, list | tuple) else ()
    numbers = [
        pair
        for pair in pairs
        if isinstance(pair, list | tuple)
        and len(pair) == 2
        and all(isinstance(number, int | float) and 0 < number < math.inf for number in pair)
    ]
    rising = all(first[0] < second[0] for first, second in pairwise(numbers))
    if not pairs or len(numbers) < len(pairs) or not rising:
        return value, [Problem(where, "must be a list of pairs of numbers above 0, the first of them rising")]
    return tuple((float(first), float(second)) for first, second in numbers), []


def _check_kinds(path: str, section: object) -> list[Problem]:
    """Problems of a section built in Python; what was left out is as it should be."""
    values = {item.name: getattr(section, item.name) for item in fields(section)}  # type: ignore[arg-type]
    for item in fields(section):  # type: ignore[arg-type]
        if item.default is not MISSING and values[item.name] == item.default:
            del values[item.name]
    return _read(path, type(section), values)[1]


def _convert(where: str, value: object, hint: Any) -> tuple[object, list[Problem]]:
    """``value`` as the field wants it, or what is wrong with it."""
    rules = getattr(hint, "__metadata__", (bool,))
    rule = rules[0]
    if rule is bool:
        if isinstance(value, bool):
            return value, []
        return value, [Problem(where, f"must be true or false, not {_kind(value)}", (True, False))]
    if isinstance(rule, Pairs):
        return _convert_pairs(where, value)
    if isinstance(rule, Rows):
        return _read_rows(where, value, rule.kind)
    if isinstance(rule, Whole):
        return _convert_whole(where, value, rule)
    if isinstance(rule, Real):
        return _convert_real(where, value, rule)
    if not isinstance(value, str):
        valid = rule.names if isinstance(rule, OneOf) else ()
        return value, [Problem(where, f"must be a text, not {_kind(value)}", valid)]
    if isinstance(rule, OneOf) and value not in rule.names:
        return value, [
            Problem(
                where, f"{value!r} is not one of its values{_did_you_mean(value, rule.names)}", rule.names
            )
        ]
    assert isinstance(rule, OneOf | Text)
    if any(0xD800 <= ord(letter) <= 0xDFFF for letter in value):
        return value, [Problem(where, "holds half a surrogate pair, which is no text")]
    return value, []


def _convert_whole(where: str, value: object, rule: Whole) -> tuple[object, list[Problem]]:
    upper = rule.maximum
    valid: tuple[object, ...] = ()
    if upper is not None and upper - rule.minimum < 16:
        valid = tuple(range(rule.minimum, upper + 1))
    if not isinstance(value, int) or isinstance(value, bool):
        return value, [Problem(where, f"must be a whole number, not {_kind(value)}", valid)]
    if value < rule.minimum or (upper is not None and value > upper):
        limits = f"at least {rule.minimum}" if upper is None else f"between {rule.minimum} and {upper}"
        return value, [Problem(where, f"must be {limits}, not {value}", valid)]
    return value, []


def _convert_real(where: str, value: object, rule: Real) -> tuple[object, list[Problem]]:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return value, [Problem(where, f"must be a number, not {_kind(value)}")]
    if not math.isfinite(value):
        return value, [Problem(where, f"must be finite, not {value}")]
    if value < rule.minimum or (rule.below is not None and value >= rule.below):
        limits = f"at least {rule.minimum:g}" + ("" if rule.below is None else f" and below {rule.below:g}")
        return value, [Problem(where, f"must be {limits}, not {value:g}")]
    return float(value), []


def _unknown(path: str, table: Mapping[str, object], known: list[str]) -> list[Problem]:
    prefix = f"{path}." if path else ""
    return [
        Problem(f"{prefix}{key}", "is not a field" + _did_you_mean(key, known), tuple(known))
        for key in table
        if key not in known
    ]


def _did_you_mean(name: object, known: Any) -> str:
    near = difflib.get_close_matches(str(name).lower(), list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def _kind(value: object) -> str:
    """What a value is, in the words of a job file."""
    if value is None:
        return "nothing"
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", list: "a list"}
    name = names.get(type(value), "a table" if isinstance(value, Mapping) else f"a {type(value).__name__}")
    return name if isinstance(value, Mapping | list) else f"{name} ({value!r})"
