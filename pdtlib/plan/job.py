"""Jobs in and out: read TOML or JSON, check, change single fields, write them back.

>>> job = loads('''
... [model]
... preset = "llama3-8b"
... [parallel]
... tp = 8
... [train]
... global_batch = 128
... ''')
>>> job.model.kv_heads, job.gradient_accumulation, job.hardware.n_gpus
(8, 128, 8)
>>> replace(job, {"parallel.dp": 2}).gradient_accumulation
64
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from pdtlib.plan.hardware_file import HEADER
from pdtlib.plan.spec import (
    Hardware,
    Job,
    JobError,
    Model,
    MoE,
    Parallel,
    Problem,
    Train,
)
from pdtlib.plan.validate import build, validate

__all__ = [
    "Hardware",
    "Job",
    "JobError",
    "MoE",
    "Model",
    "Parallel",
    "Problem",
    "Train",
    "from_dict",
    "hardware_toml",
    "load",
    "loads",
    "replace",
    "to_dict",
    "to_json",
    "to_plain",
    "to_toml",
    "validate",
]


def load(path: str | Path) -> Job:
    """Read a job file: JSON if its name ends in ``.json``, else TOML.

    Raises :class:`JobError` for a bad job and ``OSError`` where the file cannot be read.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")  # Windows editors begin a file with a mark
    except UnicodeDecodeError as error:
        raise JobError(
            [Problem("", f"{path} is not UTF-8 text ({error.reason} at byte {error.start})")]
        ) from error
    return build(parse(text, "json" if path.suffix == ".json" else "toml"), folder=path.parent)


def loads(text: str, format: str = "toml") -> Job:
    """Read a job from a TOML or JSON text."""
    return from_dict(parse(text, format))


def parse(text: str, format: str) -> dict[str, object]:
    """The tables of a TOML or JSON text, not yet checked; :class:`JobError` if it cannot be parsed."""
    try:
        if format == "toml":
            return tomllib.loads(text)
        if format == "json":
            return json.loads(text, object_pairs_hook=_no_duplicates)  # type: ignore[no-any-return]
    except ValueError as error:  # both parsers' errors are ValueErrors
        raise JobError([Problem("", f"not valid {format.upper()}: {error}")]) from error
    except RecursionError:
        raise JobError([Problem("", f"not a job: {format.upper()} nested too deeply")]) from None
    raise ValueError(f"format={format!r}; valid: 'toml', 'json'")


def _no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"{', '.join(map(repr, twice))} given twice")
    return found


def from_dict(data: Mapping[str, object]) -> Job:
    """A job from the tables of a job file; :class:`JobError` with every problem if it cannot work."""
    return build(data)


def replace(job: Job, changes: Mapping[str, object]) -> Job:
    """The job with some fields changed, by dotted path, and checked again.

    Fields that followed others go on following them: dp x tp x pp x cp still makes n_gpus (or n_gpus
    makes dp, if that is what changes), and heads still make kv_heads where they were equal. ``model.preset``
    and ``hardware.cluster`` replace their whole section. Raises :class:`JobError`.
    """
    data: dict[str, Any] = to_dict(job)
    if "hardware.n_gpus" in changes and "parallel.dp" not in changes:
        del data["parallel"]["dp"]
    del data["hardware"]["n_gpus"]
    for preset in ("model.preset", "hardware.cluster"):
        if preset in changes:
            data[preset.partition(".")[0]] = {}
    for path, value in changes.items():
        *tables, name = path.split(".")
        table = data
        for key in tables:
            table = table.setdefault(key, {})
            if not isinstance(table, dict):
                raise JobError([Problem(path, f"{key} is a value, not a table of fields")])
        table[name] = value
    return from_dict(data)


def to_dict(job: Job) -> dict[str, Any]:
    """The tables of the job, without the fields that have their usual value; :func:`from_dict` undoes it."""
    return {
        "model": _table(job.model, ()),
        "train": _table(job.train, ("global_batch", "micro_batch", "precision", "zero_stage")),
        "parallel": _table(job.parallel, ("dp", "tp", "pp")),
        "hardware": _table(job.hardware, ("gpu", "n_gpus")),
    }


def _table(section: Any, always: tuple[str, ...]) -> dict[str, Any]:
    """A section's fields, less those not in ``always`` that come back by themselves when left out."""
    table = {item.name: getattr(section, item.name) for item in fields(section)}
    for item in fields(section):
        if item.name not in always and item.default is not MISSING:
            rest = {name: value for name, value in table.items() if name != item.name}
            if type(section)(**rest) == section:
                table = rest
    return {name: to_plain(value) for name, value in table.items()}


def to_plain(value: Any) -> Any:
    """A section, or a part of one, as the tables and lists that a file has."""
    if is_dataclass(value) and not isinstance(value, type):
        return _table(value, ())
    return [to_plain(item) for item in value] if isinstance(value, tuple) else value


def to_json(job: Job) -> str:
    """The job as JSON text."""
    return json.dumps(to_dict(job), indent=2, ensure_ascii=False) + "\n"


def to_toml(job: Job) -> str:
    """The job as TOML text; reading it back gives an equal job."""
    return tables_to_toml(to_dict(job))


def hardware_toml(hardware: Hardware, *, name: str) -> str:
    """A hardware file of that name; :mod:`pdtlib.plan.hardware_file` reads it."""
    table = _table(hardware, ("gpu", "gpus_per_node"))
    del table["n_gpus"]  # the job's own choice
    return HEADER.format(name=name) + tables_to_toml({"hardware": table})


def tables_to_toml(tables: Mapping[str, dict[str, Any]]) -> str:
    """Sections as TOML text; the tables in a section follow it, lists of tables stay in a field."""
    blocks = []
    for section, table in tables.items():
        nested = {name: value for name, value in table.items() if isinstance(value, dict)}
        plain = {name: value for name, value in table.items() if name not in nested}
        blocks.append(_toml_table(section, plain))
        blocks += [_toml_table(f"{section}.{name}", value) for name, value in nested.items()]
    return "\n".join(blocks)


def _toml_table(header: str, table: dict[str, Any]) -> str:
    return "\n".join(
        [f"[{header}]", *(f"{name} = {_toml_value(value)}" for name, value in table.items()), ""]
    )


def _toml_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _toml_string(value)
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{name} = {_toml_value(item)}' for name, item in value.items())} }}"
    if isinstance(value, list):
        items = [_toml_value(item) for item in value]
        if any(isinstance(item, dict) for item in value):
            return "[\n" + "".join(f"  {item},\n" for item in items) + "]"
        return f"[{', '.join(items)}]"
    return repr(value)  # the shortest text that reads back as the same number


def _toml_string(text: str) -> str:
    escapes = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    letters = (
        escapes.get(letter)
        or (f"\\u{ord(letter):04X}" if ord(letter) < 0x20 or ord(letter) == 0x7F else letter)
        for letter in text
    )
    return f'"{"".join(letters)}"'
