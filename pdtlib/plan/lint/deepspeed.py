"""What DeepSpeed 0.19 says to every key of a configuration: read, deprecated, ignored, rejected or unknown.

Its top level passes over unknown keys in silence, so a misspelt section is no section; most sections below
refuse them. Batch sizes are checked against each other as DeepSpeed does at start.
"""

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pdtlib.plan.lint.deepspeed_keys import (
    LOOSE,
    REMOVED,
    RENAMED,
    STRICT,
    TOP,
    ZERO_DEPRECATED,
    ZERO_STAGES,
)
from pdtlib.plan.lint.kinds import Kind

VERDICTS = ("ok", "deprecated", "ignored", "rejected", "unknown")
MASTER_FLAGS = ("fp16_master_weights_and_grads", "bf16_master_weights_and_grads", "bf16_optimizer_states")
BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
TRUE_WORDS = ("true", "yes", "on", "t", "y", "1")
ELSEWHERE = {
    "pipeline_parallel": "stages come from PipelineModule(layers, num_stages=...)",
    "pipeline_type": "its only schedule is 1F1B",
    "num_chunks": "interleaving is Megatron's virtual_pipeline_model_parallel_size",
    "parallelism": "degrees come from the launcher and the model",
}


@dataclass(frozen=True)
class Verdict:
    """``verdict`` is ok, deprecated, ignored (known, but changes nothing here), rejected (an error at start)
    or unknown (passed over in silence)."""

    key: str
    verdict: str
    message: str


def lint_deepspeed(text: str) -> list[Verdict]:
    """Verdicts on a configuration as text: one for each key, those without a key are on the whole."""
    try:
        data = json.loads(text, object_pairs_hook=_no_duplicates)
    except ValueError as error:
        return _not_json(text, error)
    except RecursionError:
        return [Verdict("", "rejected", "nested too deeply to be read")]
    if not isinstance(data, dict):
        return [Verdict("", "rejected", "the file must hold an object of keys")]
    return [*_top(data), *_whole(data)]


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"duplicate keys: {', '.join(twice)}")
    return dict(pairs)


def _not_json(text: str, error: ValueError) -> list[Verdict]:
    """DeepSpeed reads JSON or HJSON; of YAML, which it does not read, at least the keys are judged."""
    if "duplicate keys" in str(error):
        return [Verdict("", "rejected", str(error))]
    found = [Verdict("", "rejected", f"DeepSpeed reads JSON, not this: {error}")]
    data = _read_yaml_subset(text)
    if data is None:
        return found
    if set(data) == {"deepspeed"} and isinstance(data["deepspeed"], dict):
        found.append(Verdict("deepspeed", "unknown", "sections stand at the top level, without this wrapper"))
        data = data["deepspeed"]
    return [*found, *_top(data), *_whole(data)]


def _top(data: Mapping[str, Any]) -> Iterator[Verdict]:
    for key, value in data.items():
        if key in REMOVED:
            yield Verdict(key, "rejected", "removed from DeepSpeed; its configuration is refused")
        elif key in RENAMED:
            yield Verdict(key, "deprecated", f"now called {RENAMED[key]}")
            yield from _value(key, value, TOP[RENAMED[key]])
            yield from _section(RENAMED[key], value, key)
        elif key not in TOP:
            hint = ELSEWHERE.get(key) or _near(key, TOP)
            yield Verdict(
                key, "unknown", "no such section: passed over in silence" + (f"; {hint}" if hint else "")
            )
        elif key == "zero_optimization" and isinstance(value, bool):
            yield Verdict(key, "deprecated", "a flag means stage 1; write {stage: 1}")
        else:
            wrong = list(_value(key, value, TOP[key]))
            yield from wrong or [Verdict(key, "ok", "read")]
            if not wrong:
                yield from _section(key, value, key)


def _section(name: str, value: Any, path: str) -> Iterator[Verdict]:
    """Verdicts on the keys of a section, if its keys are known."""
    strict = STRICT.get(name)
    known = strict if strict is not None else LOOSE.get(name)
    if known is None or not isinstance(value, Mapping):
        return
    stage = _stage(value) if name == "zero_optimization" else None
    for key, item in value.items():
        where = f"{path}.{key}"
        if f"{name}.{key}" in REMOVED:
            yield Verdict(where, "rejected", "removed from DeepSpeed; its configuration is refused")
        elif name == "zero_optimization" and key in ZERO_DEPRECATED:
            yield Verdict(where, "deprecated", f"use {ZERO_DEPRECATED[key]}")
        elif key not in known:
            hint = _near(key, known)
            if strict is not None and item != "auto":
                yield Verdict(
                    where, "rejected", "extra inputs are not permitted" + (f"; {hint}" if hint else "")
                )
            else:
                yield Verdict(where, "unknown", "passed over in silence" + (f"; {hint}" if hint else ""))
        else:
            yield from _known(where, key, item, known[key], stage)
            yield from _section(f"{name}.{key}", item, where)


def _stage(zero: Mapping[str, Any]) -> int:
    """The ZeRO stage, from a number or a text of digits; 0 where it is neither."""
    text = str(zero.get("stage", 0)).partition(".0")[0]
    return int(text) if text.lstrip("-").isdigit() else int(text == "True")


def _known(where: str, key: str, item: Any, kind: Kind, stage: int | None) -> Iterator[Verdict]:
    wrong = list(_value(where, item, kind))
    stages = ZERO_STAGES.get(key) if stage is not None else None
    if wrong:
        yield from wrong
    elif key == "stage" and stage is not None and item != "auto" and stage not in (0, 1, 2, 3):
        yield Verdict(where, "rejected", "the stage is 0, 1, 2 or 3")
    elif key == "compute_grad_norm" and stage not in (1, 2) and not _is_true(item) and item != "auto":
        yield Verdict(where, "rejected", "false goes with stages 1 and 2 alone")
    elif stages is not None and stage not in stages:
        used = " and ".join(map(str, stages))
        reads = f"stages {used} read" if len(stages) > 1 else f"stage {used} reads"
        yield Verdict(where, "ignored", f"only {reads} it, and this is stage {stage}")
    elif key == "sub_group_size" and stage is not None and stage < 3:
        yield Verdict(where, "ignored", "only stage 3 and offloading read it")
    else:
        yield Verdict(where, "ok", "read")


def _value(where: str, value: Any, kind: Kind) -> Iterator[Verdict]:
    """A verdict if DeepSpeed cannot read the value."""
    reason = kind.wrong(value)
    if reason and value == "auto":
        reason += "; only Hugging Face's Trainer fills it in"
    if reason:
        yield Verdict(where, "rejected", reason)


def _is_true(value: Any) -> bool:
    return value.lower() in TRUE_WORDS if isinstance(value, str) else bool(value)


def _whole(data: Mapping[str, Any]) -> Iterator[Verdict]:
    """What concerns the configuration as a whole."""
    yield from _batch(*(data.get(name) for name in BATCH))
    sections = {name: _table(data, name) for name in ("fp16", "bf16", "zero_optimization", "data_types")}
    if "bf16" not in data:
        sections["bf16"] = _table(data, "bfloat16")
    enabled = [name for name in ("fp16", "bf16") if _is_true(sections[name].get("enabled", False))]
    if len(enabled) == 2:
        yield Verdict("bf16", "rejected", "bf16 and fp16 cannot both be enabled")
    if not enabled and "torch_autocast" not in data:
        yield Verdict("", "ok", "no bf16 or fp16 section: DeepSpeed trains in fp32")
    flag = data.get("zero_optimization") is True
    stage = 1 if flag else _stage(sections["zero_optimization"])
    for name in MASTER_FLAGS:
        section = name.partition("_")[0]
        if _is_true(sections[section].get(name, False)) and stage == 0:
            yield Verdict(f"{section}.{name}", "rejected", "it goes with ZeRO stages 1, 2 and 3 alone")
    bf16 = sections["bf16"]
    if _is_true(bf16.get(MASTER_FLAGS[2], False)) and not _is_true(bf16.get(MASTER_FLAGS[1], False)):
        yield Verdict(f"bf16.{MASTER_FLAGS[2]}", "rejected", f"it needs {MASTER_FLAGS[1]}")
    if data.get("gradient_allreduce_op") == "sum" and stage == 3:
        yield Verdict("gradient_allreduce_op", "rejected", "sum does not go with stage 3")
    kept = {"fp16": "fp16", "bf16": "bf16"}.get(enabled[0] if enabled else "", "fp32")
    wanted = sections["data_types"].get("grad_accum_dtype")
    if stage == 0 and isinstance(wanted, str) and wanted in ("fp16", "bf16", "fp32") and wanted != kept:
        message = (
            f"without ZeRO gradients are kept as the model is, in {kept}; refused by the engine at start"
        )
        yield Verdict("data_types.grad_accum_dtype", "rejected", message)
    stages = _table(data, "pipeline").get("stages")
    if isinstance(stages, int) and stages > 1 and stage in (2, 3):
        message = "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism"
        yield Verdict("zero_optimization.stage", "rejected", message)


def _batch(batch: Any, micro: Any, steps: Any) -> Iterator[Verdict]:
    """The three sizes fit each other, on some number of data-parallel ranks."""
    if batch is None and micro is None:
        yield Verdict(
            "", "rejected", "either train_batch_size or train_micro_batch_size_per_gpu must be given"
        )
    numbers = [value for value in (batch, micro, steps) if value is not None]
    if batch is None or len(numbers) < 2 or not all(isinstance(value, int | float) for value in numbers):
        return
    product = (1 if micro is None else micro) * (1 if steps is None else steps)
    if product > 0 and batch > 0 and batch % product:
        words = " x ".join(
            word for word, size in (("micro-batch", micro), ("accumulation", steps)) if size is not None
        )
        message = f"{batch} is no multiple of {words} = {' x '.join(map(str, numbers[1:]))}"
        yield Verdict("train_batch_size", "rejected", message)


def _table(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = data.get(name)
    return value if isinstance(value, Mapping) else {}


def _near(key: str, known: Mapping[str, Any]) -> str:
    extra = {"size": "autotp_size"} if "autotp_size" in known else {}
    near = [extra[key]] if key in extra else difflib.get_close_matches(key, list(known), n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else ""


def _read_yaml_subset(text: str) -> dict[str, Any] | None:
    """Nested ``key: value`` lines as YAML 1.1 reads them, where ``5e8`` without a point is a text.

    None if the text is more than that.
    """
    root: dict[str, Any] = {}
    stack: list[tuple[int, dict[str, Any]]] = [(-1, root)]
    for raw in text.splitlines():
        line = raw.partition(" #")[0].rstrip()
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        indent = len(line) - len(line.lstrip())
        key, colon, value = line.strip().partition(":")
        if not colon or key.startswith("-"):
            return None
        while stack[-1][0] >= indent:
            stack.pop()
        parent = stack[-1][1]
        if value.strip():
            parent[key] = _yaml_value(value.strip())
        else:
            parent[key] = {}
            stack.append((indent, parent[key]))
    return root or None


def _yaml_value(text: str) -> Any:
    words = {"true": True, "false": False, "null": None, "yes": True, "no": False}
    if text.lower() in words:
        return words[text.lower()]
    if text.lstrip("+-").isdigit():
        return int(text)
    if "." in text:
        try:
            return float(text)
        except ValueError:
            pass
    return text.strip("'\"")
