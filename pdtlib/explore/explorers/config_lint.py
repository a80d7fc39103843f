"""Explorer ``config-lint``: what DeepSpeed does with each key of a file, while the reader repairs it."""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from typing import Any

from pdtlib.explore.controls import Choice, ControlError, Text
from pdtlib.explore.explorer import Explorer, Values
from pdtlib.explore.view import Readout, Swatch, Table, View
from pdtlib.figures import lint as drawing
from pdtlib.figures.words import say
from pdtlib.plan.lint import Verdict, lint_deepspeed
from pdtlib.plan.lint.article import KEYS, REPAIRED, as_yaml

FILES: dict[str, dict[str, Any]] = {
    "keys": KEYS,
    "repaired": REPAIRED,
    "small": {"train_micro_batch_size_per_gpu": 1},
}
_KEY = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_EDIT = re.compile(rf"-\s*({_KEY})|({_KEY})\s*=\s*(\S.*)")
SUGGESTIONS = (
    "tensor_parallel.autotp_size=8, -tensor_parallel.size",
    "zero_optimization.stage=1, pipeline.stages=4",
    "zero_optimization.reduce_bucket_size=5e8",
    "bf16.enabled=true",
    "-pipeline_parallel, -pipeline_type, -num_chunks",
)


def read_edits(text: str) -> list[tuple[list[str], str | None]]:
    """Changes as (path, value as typed or None to take the key out). Raises ValueError with an example."""
    found: list[tuple[list[str], str | None]] = []
    for part in filter(None, map(str.strip, text.split(","))):
        match = _EDIT.fullmatch(part)
        if match is None:
            raise ValueError(say("lint.edit_form", part=part))
        out, key, value = match.groups()
        found.append(((out or key).split("."), value))
    return found


def edited(config: dict[str, Any], text: str) -> dict[str, Any]:
    """The configuration with the changes made. Raises ControlError where a section is none."""
    config = copy.deepcopy(config)
    for path, value in read_edits(text):
        section: Any = config
        for name in path[:-1]:
            section = section.setdefault(name, {}) if value is not None else section.get(name, {})
            if not isinstance(section, dict):
                raise ControlError("edits", say("lint.edit_path", path=".".join(path), name=name))
        if value is None:
            section.pop(path[-1], None)
        else:
            section[path[-1]] = _value(value)
    return config


def _value(text: str) -> Any:
    """A value as JSON; what is none is a text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _view(values: Values) -> View:
    if values["file"] == "yaml":
        text = as_yaml()
    else:
        text = json.dumps(edited(FILES[values["file"]], values["edits"]))
    verdicts = lint_deepspeed(text)
    keys = [verdict for verdict in verdicts if verdict.key]  # the others are on the file as a whole
    counts = Counter(verdict.verdict for verdict in keys)
    refused = any(verdict.verdict == "rejected" for verdict in verdicts if not verdict.key)
    return View(
        figure=drawing.figure([item for item in verdicts if not _is_note(item)]),
        summary=say(
            "lint.summary_whole" if refused else "lint.summary",
            all=len(keys),
            **{name: counts[name] for name in drawing.STYLES},
        ),
        readouts=_readouts(verdicts, counts),
        legend=tuple(
            Swatch(
                name=name,
                label=say(f"lint.{name}"),
                color=color.removeprefix("@"),
                text=str(counts[name]),
                value=counts[name],
                unit="count",
            )
            for name, (color, _) in drawing.STYLES.items()
        ),
        table=Table(
            caption=say("lint.table"),
            columns=tuple(say(f"lint.column_{name}") for name in ("key", "verdict", "message")),
            rows=tuple(
                (
                    drawing.key_words(item.key),
                    say("lint.a_note" if _is_note(item) else f"lint.{item.verdict}"),
                    _why(item),
                )
                for item in verdicts
            ),
        ),
        notes=(say("lint.note_silence"), say("lint.note_version")),
    )


def _is_note(verdict: Verdict) -> bool:
    """Whether it only says something of the file as a whole."""
    return verdict.verdict == "ok" and not verdict.key


def _why(verdict: Verdict) -> str:
    """What the verdict says beyond "read"."""
    return "" if verdict.verdict == "ok" and verdict.key else verdict.message


def _readouts(verdicts: list[Verdict], counts: Counter[str]) -> tuple[Readout, ...]:
    off = counts["unknown"] + counts["ignored"]
    stops = any(verdict.verdict == "rejected" for verdict in verdicts)
    outcome = "refuses" if stops else "silent" if off else "clean"
    in_fp32 = any(not verdict.key and "fp32" in verdict.message for verdict in verdicts)
    return (
        Readout(
            name="outcome",
            label=say("lint.verdict"),
            text=say(f"lint.{outcome}"),
            note=say("lint.starts_note", refused=counts["rejected"], passed=off),
            tone="good" if outcome == "clean" else "bad",
        ),
        Readout(
            name="read",
            label=say("lint.num_ok"),
            text=str(counts["ok"]),
            value=counts["ok"],
            unit="count",
            note=say("lint.num_ok_note", all=counts.total()),
        ),
        Readout(
            name="off",
            label=say("lint.num_off"),
            text=str(off),
            value=off,
            unit="count",
            note=say("lint.num_off_note"),
        ),
        Readout(
            name="precision",
            label=say("lint.precision"),
            text="fp32" if in_fp32 else "16 bit",
            note=say("lint.precision_note"),
        ),
    )


EXPLORER = Explorer(
    id="config-lint",
    title=say("lint.title"),
    lead=say("lint.lead"),
    controls=(
        Choice(
            name="file",
            label=say("lint.file"),
            default="yaml",
            options=tuple((name, say(f"lint.file_{name}")) for name in ("yaml", *FILES)),
        ),
        Text(
            name="edits",
            label=say("lint.edits"),
            default="",
            help=say("lint.edits_help"),
            check=read_edits,
            suggestions=SUGGESTIONS,
            when=("file", tuple(FILES)),
        ),
    ),
    view=_view,
    together=(("file", "edits"),),
)
