"""Explorer ``tensor-split``: an MLP or an attention layer cut over ranks, and what its messages cost."""

from __future__ import annotations

from typing import Any

from pdtlib.explore import sizes
from pdtlib.explore.controls import Choice, ControlError, Slider, scale
from pdtlib.explore.explorer import Explorer, Values
from pdtlib.explore.explorers import tensor_split_words as words
from pdtlib.explore.view import Readout, Swatch, View
from pdtlib.figures import tensor_split as drawing
from pdtlib.figures.amounts import bytes_words, time_words
from pdtlib.figures.words import say
from pdtlib.plan import flops, presets
from pdtlib.plan.heads import rank_heads
from pdtlib.plan.job import Job, from_dict, to_toml
from pdtlib.plan.layer_ledger import PHASES, layer_messages
from pdtlib.plan.spec import Model, Parallel, Train
from pdtlib.plan.units import GB, percent_text

MODELS = ("llama3-8b", "llama2-70b", "llama3-70b", "qwen2.5-32b", "gpt3-175b", "llama3-405b", "mt-nlg-530b")
TPS = (1, 2, 4, 8, 16, 32)
SEQS = (1024, 2048, 4096, 8192, 16384, 32768, 131072)
MICRO_BATCHES = (1, 2, 4, 8)
LINKS = ("nvlink", "ethernet-100g", "ib-hdr-200", "ib-ndr-400", "ib-xdr-800")
SHARES = (0.3, 0.4, 0.5, 0.6, 0.7)
RATES = tuple(10 ** (exponent / 20) * GB for exponent in range(16, 65))  # 6.3 GB/s to 1.6 TB/s


def _model(values: Values) -> Model:
    model = presets.model(values["model"])
    return Model(**{**vars(model), "seq": values["seq"]})


def _rate(values: Values, link: str) -> float:
    return presets.GPUS[values["gpu"]].nvlink_bytes_per_s if link == "nvlink" else presets.LINKS[link]


def _split(values: Values, model: Model) -> drawing.Split:
    tp, rank = values["tp"], min(values["rank"], values["tp"] - 1)
    try:
        queries, keys = rank_heads(model.heads, model.kv_heads, tp=tp, rank=rank)
    except ValueError as problem:
        raise ControlError("tp", str(problem)) from None
    if model.ffn % tp:
        raise ControlError("tp", say("split.uneven", tp=tp, ffn=f"{model.ffn:,}"))
    return drawing.Split(tp, rank, model.heads, model.kv_heads, queries, keys)


def _view(values: Values) -> View:
    model = _model(values)
    split = _split(values, model)
    tp, part, forward = split.tp, values["part"], values["direction"] == "forward"
    job = Job(model=model, train=Train(micro_batch=values["micro_batch"]), parallel=Parallel(tp=tp))
    layer = layer_messages(job)
    message = layer[0].message_bytes if layer else 0.0
    calls = {phase: sum(row.count for row in layer if row.phase == phase) for phase in PHASES}
    sent = model.layers * sum(row.sent_bytes_per_rank for row in layer)
    tokens = values["micro_batch"] * model.seq
    rate_flops = presets.GPUS[values["gpu"]].peak_flops * values["share"]
    compute_s = tokens * flops.model_flops_per_token(model) / (tp * rate_flops)

    def share(rate: float) -> float:
        return sent / rate / (compute_s + sent / rate)

    links = [
        drawing.Link(_link_name(link), _rate(values, link), share(_rate(values, link))) for link in LINKS
    ]
    chosen = links[LINKS.index(values["link"])]
    active = "" if tp == 1 else "g" if forward else "f"
    message_s = sent / chosen.bytes_per_s
    return View(
        figure=drawing.figure(
            split,
            part=part,
            active=active,
            curve=[(rate, share(rate)) for rate in RATES],
            links=links,
            chosen=chosen,
        ),
        summary=words.summary(
            split, part=part, forward=forward, message=message, share=chosen.share, link=chosen.name
        ),
        readouts=(
            Readout(
                name="calls",
                label=say("split.calls"),
                text=say("split.calls_text", forward=calls["forward"], backward=calls["backward"]),
                value=calls["forward"] + calls["backward"],
                unit="count",
                note=say("split.calls_note"),
            ),
            Readout(
                name="message",
                label=say("split.message"),
                text=bytes_words(message),
                value=message,
                unit="bytes",
                note=say(
                    "split.message_note",
                    batch=values["micro_batch"],
                    seq=f"{model.seq:,}",
                    hidden=f"{model.hidden:,}",
                ),
            ),
            Readout(
                name="sent",
                label=say("split.sent"),
                text=bytes_words(sent),
                value=sent,
                unit="bytes",
                note=say("split.sent_note", layers=model.layers),
            ),
            Readout(
                name="compute",
                label=say("split.compute"),
                text=time_words(compute_s),
                value=compute_s,
                unit="s",
                note=say("split.compute_note", tp=tp, share=percent_text(values["share"], digits=0)),
            ),
            Readout(
                name="messages",
                label=say("split.messages"),
                text=time_words(message_s),
                value=message_s,
                unit="s",
                note=say("split.messages_note", rate=f"{chosen.bytes_per_s / GB:g}"),
            ),
            Readout(
                name="share",
                label=say("split.cost"),
                text=percent_text(chosen.share),
                value=chosen.share,
                unit="",
                note=say("split.cost_note"),
                tone="good" if chosen.share <= 0.2 else "bad",
            ),
        ),
        legend=(
            Swatch(name="own", label=say("split.own", rank=split.rank), color="c1"),
            *(
                (Swatch(name="whole", label=say("split.whole"), color="c4", pattern="/"),)
                if part == "mlp"
                else ()
            ),
            Swatch(name="active", label=say("split.active"), color="c2", pattern="line"),
        ),
        table=words.table(model, split, part=part),
        notes=words.notes(values, model, split),
        job=_job(values),
        limits={"rank": tp},
    )


def _job(values: Values) -> str:
    return to_toml(
        from_dict(
            {
                "model": {"preset": values["model"], "seq": values["seq"], "vocab": _vocab(values)},
                "train": {"micro_batch": values["micro_batch"]},
                "parallel": {"tp": values["tp"]},
                "hardware": {"gpu": values["gpu"], "gpus_per_node": max(words.NODE, values["tp"])},
            }
        )
    )


def _vocab(values: Values) -> int:
    """The vocabulary, padded so that the ranks share it evenly."""
    tp, vocab = values["tp"], presets.model(values["model"]).vocab
    return -(-vocab // tp) * tp


def _adopt(job: Job) -> dict[str, Any]:
    state: dict[str, Any] = {
        "seq": sizes.nearest(SEQS, job.model.seq),
        "micro_batch": sizes.nearest(MICRO_BATCHES, job.train.micro_batch),
    }
    if job.model.name in MODELS:
        state["model"] = job.model.name
    model = presets.model(state.get("model", _DEFAULT_MODEL))
    fitting = tuple(tp for tp in TPS if model.heads % tp == 0 and model.ffn % tp == 0 and _kv_fits(model, tp))
    state["tp"] = sizes.nearest(fitting, job.parallel.tp)
    if job.hardware.gpu in sizes.GPUS:
        state["gpu"] = job.hardware.gpu
    if job.hardware.inter in LINKS:
        state["link"] = job.hardware.inter
    return state


def _kv_fits(model: Model, tp: int) -> bool:
    return model.kv_heads % tp == 0 or tp % model.kv_heads == 0


def _link_name(link: str) -> str:
    return say("split.link_nvlink") if link == "nvlink" else link


_DEFAULT_MODEL = "llama2-70b"
_LAYER, _SPLIT, _COST = (say(f"split.group_{name}") for name in ("layer", "split", "cost"))

EXPLORER = Explorer(
    id="tensor-split",
    title=say("split.title"),
    lead=say("split.lead"),
    controls=(
        Choice(
            name="part",
            label=say("split.part"),
            default="mlp",
            group=_SPLIT,
            options=(("mlp", say("split.part_mlp")), ("attention", say("split.part_attention"))),
        ),
        Slider(name="tp", label=say("split.tp"), default=8, group=_SPLIT, options=scale(TPS)),
        Slider(name="rank", label=say("split.rank"), default=0, group=_SPLIT, options=scale(range(TPS[-1]))),
        sizes.direction_control(group=_SPLIT),
        sizes.preset_control(_DEFAULT_MODEL, MODELS, group=_LAYER),
        sizes.seq_control(4096, SEQS, group=_LAYER),
        Slider(
            name="micro_batch",
            label=say("memory.micro_batch"),
            default=1,
            group=_LAYER,
            options=scale(MICRO_BATCHES),
        ),
        sizes.gpu_control(group=_COST),
        Choice(
            name="link",
            label=say("split.link"),
            default="nvlink",
            group=_COST,
            options=(
                ("nvlink", say("split.link_nvlink")),
                *(
                    (link, say("overlap.link_text", name=link, rate=f"{presets.LINKS[link] / GB:g}"))
                    for link in LINKS
                    if link != "nvlink"
                ),
            ),
        ),
        Slider(
            name="share",
            label=say("overlap.share"),
            default=0.5,
            group=_COST,
            options=scale(SHARES, lambda share: percent_text(share, digits=0)),
        ),
    ),
    view=_view,
    adopt_job=_adopt,
)
