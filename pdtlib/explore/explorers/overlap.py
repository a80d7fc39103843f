"""Explorer ``overlap``: DDP's buckets against the backward pass, and what of their all-reduce is exposed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pdtlib.explore import sizes
from pdtlib.explore.controls import Choice, Slider, Toggle, scale
from pdtlib.explore.explorer import Explorer, Values
from pdtlib.explore.view import Readout, Swatch, Table, View
from pdtlib.figures import overlap as drawing
from pdtlib.figures.amounts import bytes_words, count_words, time_words
from pdtlib.figures.words import say
from pdtlib.plan import presets
from pdtlib.plan.comm import sent_bytes
from pdtlib.plan.job import Hardware, Job, from_dict, to_toml
from pdtlib.plan.overlap import Overlap, bucket_timeline
from pdtlib.plan.params import tensors
from pdtlib.plan.sharding import buckets
from pdtlib.plan.units import GB, MIB, percent_text

MODELS = ("gpt2", "gpt2-large", "gpt2-xl", "llama2-7b", "llama3-8b", "qwen2.5-14b", "qwen2.5-32b")
TOKENS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
RANKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
LINKS = ("nvlink", "ethernet-100g", "ib-hdr-100", "ib-hdr-200", "ib-ndr-400", "ib-xdr-800")
MICROS = (1, 2, 5, 10, 20, 50, 100)
NODE = Hardware.gpus_per_node  # what a job takes for granted
WHOLE = 0
BUCKETS = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, WHOLE)  # MiB


@dataclass(frozen=True)
class _Case:
    """One timeline with what it was made from."""

    line: Overlap
    num_buckets: int
    largest_bytes: int


@lru_cache(maxsize=8)
def _sizes(model: str, element_bytes: int) -> tuple[int, ...]:
    return tuple(spec.numel * element_bytes for spec in tensors(presets.model(model)))


def _gradients(values: Values) -> tuple[int, ...]:
    return _sizes(values["model"], 4 if values["fp32"] else 2)


def _params(values: Values) -> int:
    return sum(_sizes(values["model"], 1))


def _link_bytes_per_s(values: Values) -> float:
    if values["link"] == "nvlink":
        return presets.GPUS[values["gpu"]].nvlink_bytes_per_s
    return presets.LINKS[values["link"]]


def _case(values: Values, *, bucket: int, overlap: bool) -> _Case:
    gradients = _gradients(values)
    flops = 4.0 * _params(values) * values["tokens"]  # two thirds of 6ND
    limit = bucket * MIB if bucket != WHOLE else sum(gradients)
    line = bucket_timeline(
        gradients,
        limit_bytes=limit,
        backward_s=flops / (presets.GPUS[values["gpu"]].peak_flops * values["share"]),
        dp=values["ranks"],
        bytes_per_s=_link_bytes_per_s(values),
        latency_s=values["latency"] * 1e-6,
        overlap=overlap,
    )
    groups = [sum(gradients[index] for index in members) for members in buckets(gradients, limit)]
    return _Case(line, len(groups), max(groups))


def _bucket_text(bucket: int) -> str:
    return say("overlap.bucket_whole") if bucket == WHOLE else f"{bucket} MiB"


def _view(values: Values) -> View:
    cases = {bucket: _case(values, bucket=bucket, overlap=values["overlap"]) for bucket in BUCKETS}
    chosen = cases[values["bucket"]]
    curve = [(_bucket_text(bucket), case.line.exposed_s) for bucket, case in cases.items()]
    return View(
        figure=drawing.figure(
            chosen.line,
            num_buckets=chosen.num_buckets,
            curve=curve,
            chosen=BUCKETS.index(values["bucket"]),
        ),
        summary=_summary(values, chosen),
        readouts=_readouts(values, chosen, cases),
        legend=(
            *(
                Swatch(
                    name=part.name,
                    label=say(f"overlap.{part.name}"),
                    color=part.color,
                    pattern=part.pattern,
                )
                for part in drawing.LANES.values()
            ),
            Swatch(name="exposed", label=say("overlap.exposed"), color="bad", pattern="line"),
        ),
        table=Table(
            caption=say("overlap.table"),
            columns=tuple(
                say(f"overlap.column_{name}") for name in ("bucket", "buckets", "communication", "exposed")
            ),
            rows=tuple(
                (
                    _bucket_text(bucket),
                    f"{case.num_buckets:,}",
                    time_words(case.line.communication_s),
                    time_words(case.line.exposed_s),
                )
                for bucket, case in cases.items()
            ),
        ),
        notes=_notes(values, chosen),
        job=_job(values),
    )


def _summary(values: Values, case: _Case) -> str:
    if values["ranks"] == 1:
        return say("overlap.summary_one")
    line = case.line
    return say(
        "overlap.summary",
        buckets=f"{case.num_buckets:,}",
        communication=time_words(line.communication_s),
        hidden=time_words(line.communication_s - line.exposed_s),
        exposed=time_words(line.exposed_s),
        share=percent_text(line.exposed_s / line.backward_s),
    )


def _time(name: str, seconds: float, note: str) -> Readout:
    label = say(f"overlap.readout_{name}")
    return Readout(name=name, label=label, text=time_words(seconds), value=seconds, unit="s", note=note)


def _readouts(values: Values, case: _Case, cases: dict[int, _Case]) -> tuple[Readout, ...]:
    line = case.line
    serial = _case(values, bucket=values["bucket"], overlap=False).line
    # Of buckets that differ by less than what is shown, the largest: it sends the fewest messages.
    best = min(reversed(BUCKETS), key=lambda bucket: round(cases[bucket].line.exposed_s, 4))
    sent = sent_bytes("all_reduce", sum(_gradients(values)), values["ranks"])
    words = {"params": count_words(_params(values)), "tokens": f"{values['tokens']:,}"}
    share = percent_text(line.exposed_s / line.backward_s)
    return (
        _time("exposed", line.exposed_s, say("overlap.readout_exposed_note", share=share)),
        _time("backward", line.backward_s, say("overlap.readout_backward_note", **words)),
        _time(
            "communication",
            line.communication_s,
            say("overlap.readout_communication_note", sent=bytes_words(sent)),
        ),
        _time("serial", serial.exposed_s, say("overlap.readout_serial_note")),
        Readout(
            name="buckets",
            label=say("overlap.readout_buckets"),
            text=f"{case.num_buckets:,}",
            value=case.num_buckets,
            unit="count",
            note=say("overlap.readout_buckets_note", largest=bytes_words(case.largest_bytes, binary=True)),
        ),
        Readout(
            name="best",
            label=say("overlap.readout_best"),
            text=_bucket_text(best),
            note=say("overlap.readout_best_note", exposed=time_words(cases[best].line.exposed_s)),
        ),
    )


def _notes(values: Values, case: _Case) -> tuple[str, ...]:
    notes = [say("overlap.note_tensor"), say("overlap.note_model")]
    if values["link"] == "nvlink" and values["ranks"] > NODE:
        notes.insert(0, say("overlap.note_nvlink", node=NODE, ranks=values["ranks"]))
    grouped = drawing.group_size(case.num_buckets)
    if grouped > 1:
        notes.insert(0, say("overlap.note_groups", count=grouped))
    return tuple(notes)


def _job(values: Values) -> str:
    model = presets.model(values["model"])
    micro_batch = max(1, values["tokens"] // model.seq)
    return to_toml(
        from_dict(
            {
                "model": {"preset": values["model"], "seq": min(model.seq, values["tokens"])},
                "train": {
                    "micro_batch": micro_batch,
                    "global_batch": micro_batch * values["ranks"],
                    "grad_precision": "fp32" if values["fp32"] else "same",
                },
                "parallel": {"dp": values["ranks"]},
                "hardware": {"gpu": values["gpu"]},
            }
        )
    )


def _adopt(job: Job) -> dict[str, Any]:
    state: dict[str, Any] = {
        "tokens": sizes.nearest(TOKENS, job.train.micro_batch * job.model.seq),
        "ranks": sizes.nearest(RANKS, job.parallel.dp),
        "fp32": job.train.grad_precision == "fp32" or job.train.precision == "fp32",
    }
    if job.model.name in MODELS:
        state["model"] = job.model.name
    if job.hardware.gpu in sizes.GPUS:
        state["gpu"] = job.hardware.gpu
    if job.hardware.inter in LINKS:
        state["link"] = job.hardware.inter
    return state


def _link_text(link: str) -> str:
    return say("overlap.link_text", name=link, rate=f"{presets.LINKS[link] / GB:g}")


_WORK = say("overlap.group_model")
_LINK = say("overlap.group_link")
_BUCKET = say("overlap.group_bucket")

EXPLORER = Explorer(
    id="overlap",
    title=say("overlap.title"),
    lead=say("overlap.lead"),
    controls=(
        Slider(
            name="bucket",
            label=say("overlap.bucket"),
            default=25,
            group=_BUCKET,
            options=scale(BUCKETS, _bucket_text),
        ),
        Toggle(name="overlap", label=say("overlap.overlap"), default=True, group=_BUCKET),
        Slider(name="ranks", label=say("overlap.gpus"), default=8, group=_LINK, options=scale(RANKS)),
        Choice(
            name="link",
            label=say("overlap.link"),
            default="ib-hdr-200",
            group=_LINK,
            options=(
                ("nvlink", say("overlap.link_nvlink")),
                *((link, _link_text(link)) for link in LINKS if link != "nvlink"),
            ),
        ),
        Slider(
            name="latency",
            label=say("overlap.latency"),
            default=10,
            group=_LINK,
            options=scale(MICROS, lambda micros: say("overlap.latency_text", micros=micros)),
        ),
        Choice(
            name="model",
            label=say("size.label"),
            default="gpt2-xl",
            group=_WORK,
            options=tuple((name, sizes.named_text(name)) for name in MODELS),
        ),
        Slider(
            name="tokens",
            label=say("overlap.tokens"),
            default=8192,
            group=_WORK,
            options=scale(TOKENS, lambda tokens: f"{tokens:,}"),
        ),
        sizes.gpu_control(group=_WORK),
        Slider(
            name="share",
            label=say("overlap.share"),
            default=0.5,
            group=_WORK,
            options=scale(SHARES, lambda share: percent_text(share, digits=0)),
        ),
        Toggle(name="fp32", label=say("overlap.grads"), group=_WORK),
    ),
    view=_view,
    adopt_job=_adopt,
)
