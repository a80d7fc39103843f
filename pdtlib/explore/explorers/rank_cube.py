"""Explorer ``rank-cube``: a rank's groups in a 3D layout, where they lie, and what crosses which link."""

from __future__ import annotations

from collections.abc import Sequence

from pdtlib.explore import sizes
from pdtlib.explore.controls import Choice, ControlError, Number, Slider, Toggle, scale
from pdtlib.explore.explorer import Explorer, Values
from pdtlib.explore.explorers.rank_axes import AXES, Axis, axes_of, job_of
from pdtlib.explore.view import Readout, Swatch, Table, View
from pdtlib.figures import ranks as drawing
from pdtlib.figures.amounts import gb_words, time_words
from pdtlib.figures.words import say
from pdtlib.plan import presets
from pdtlib.plan.job import Job, to_toml
from pdtlib.plan.ranks import ARTICLE_ORDER, MEGATRON_ORDER, coordinates, group_of
from pdtlib.plan.spec import Parallel
from pdtlib.plan.units import GB

DEGREES = (1, 2, 4, 8, 16, 32, 64)
NODES = (4, 8, 16)
MICRO_BATCHES = (1, 8, 16, 32, 64, 96, 128)
ORDERS = {"article": ARTICLE_ORDER, "megatron": MEGATRON_ORDER}
MODELS = tuple(
    name for name in sizes.NAMED if presets.model(name).layers >= 32 and presets.model(name).moe is None
)
LINKS = ("ethernet-100g", "ib-hdr-100", "ib-hdr-200", "ib-ndr-400", "ib-xdr-800")


def _view(values: Values) -> View:
    parallel = Parallel(**{name: values[name] for name in AXES})
    world = parallel.world_size
    if world > drawing.WORLD:
        raise ControlError("dp", say("cube.too_many", world=f"{world:,}", most=f"{drawing.WORLD:,}"))
    if values["rank"] >= world:
        raise ControlError("rank", say("cube.no_rank", rank=values["rank"], last=world - 1))
    job, order = job_of(values), ORDERS[values["order"]]
    axes = axes_of(values, job, order=order)
    place = coordinates(values["rank"], parallel=parallel, order=order)
    return View(
        figure=drawing.figure(
            _roles(values["rank"], axes, parallel=parallel, order=order),
            world_size=world,
            gpus_per_node=values["per_node"],
            traffic=[
                drawing.Traffic(axis=axis.name, sent_bytes=axis.sent_bytes, inside=axis.inside)
                for axis in axes
            ],
            control="rank",
        ),
        summary=say(
            "cube.summary",
            rank=values["rank"],
            node=values["rank"] // values["per_node"],
            **place,
            **{f"{axis.name}_group": _words(axis.group) for axis in axes},
        ),
        readouts=_readouts(axes, values),
        legend=_legend(axes),
        table=_table(axes, values),
        notes=_notes(axes, values),
        job=to_toml(job),
    )


def _roles(
    rank: int, axes: Sequence[Axis], *, parallel: Parallel, order: Sequence[str]
) -> dict[str, Sequence[int]]:
    """Who the GPUs are to this rank; its replica are the pipelines of its tensor-parallel group."""
    by_axis = {axis.name: axis.group for axis in axes}
    replica = [
        other for mate in by_axis["tp"] for other in group_of(mate, "pp", parallel=parallel, order=order)
    ]
    return {**by_axis, "replica": replica, "self": [rank]}


def _words(group: Sequence[int]) -> str:
    """A group in words: all of a short one, else its beginning and end."""
    if len(group) <= 4:
        return ", ".join(map(str, group))
    step = group[1] - group[0]
    return f"{group[0]}–{group[-1]}" if step == 1 else f"{group[0]}, {group[1]}, …, {group[-1]}"


def _link_bytes_per_s(axis: Axis, values: Values) -> float:
    if axis.inside:
        return presets.GPUS[values["gpu"]].nvlink_bytes_per_s
    return presets.LINKS[values["link"]]


def _link_words(axis: Axis, values: Values) -> str:
    return say("cube.inside") if axis.inside else values["link"]


def _readouts(axes: Sequence[Axis], values: Values) -> tuple[Readout, ...]:
    across = sum(axis.sent_bytes for axis in axes if not axis.inside)
    inside = sum(axis.sent_bytes for axis in axes if axis.inside)
    network_s = sum(axis.sent_bytes / _link_bytes_per_s(axis, values) for axis in axes if not axis.inside)
    nvlink_s = sum(axis.sent_bytes / _link_bytes_per_s(axis, values) for axis in axes if axis.inside)
    return (
        *(
            Readout(
                name=axis.name,
                label=say(f"cube.group_{axis.name}"),
                text=_words(axis.group),
                note=say(
                    "cube.group_note_one" if axis.inside else "cube.group_note",
                    size=len(axis.group),
                    nodes=len(axis.nodes),
                    groups=axis.num_groups,
                ),
            )
            for axis in axes
        ),
        Readout(
            name="inside",
            label=say("cube.sent_inside"),
            text=gb_words(inside),
            value=inside,
            unit="bytes",
            note=say("cube.sent_note", time=time_words(nvlink_s)),
        ),
        Readout(
            name="across",
            label=say("cube.sent_across"),
            text=gb_words(across),
            value=across,
            unit="bytes",
            note=say("cube.sent_note", time=time_words(network_s)),
        ),
    )


def _legend(axes: Sequence[Axis]) -> tuple[Swatch, ...]:
    sent = {axis.name: axis.sent_bytes for axis in axes}
    return tuple(
        Swatch(
            name=role,
            label=say(f"cube.role_{role}"),
            color=color,
            text=gb_words(sent[role]) if role in sent else "",
            value=sent.get(role),
            unit="bytes" if role in sent else "",
        )
        for role, color in drawing.COLORS.items()
    )


def _table(axes: Sequence[Axis], values: Values) -> Table:
    columns = ("axis", "degree", "ranks", "groups", "nodes", "messages", "sent", "link", "time")
    return Table(
        caption=say("cube.table", rank=values["rank"]),
        columns=tuple(say(f"cube.column_{name}") for name in columns),
        rows=tuple(
            (
                say(f"cube.short_{axis.name}"),
                str(len(axis.group)),
                ", ".join(map(str, axis.group)),
                f"{axis.num_groups:,}",
                str(len(axis.nodes)),
                f"{sum(message.count for message in axis.messages):,}",
                gb_words(axis.sent_bytes),
                _link_words(axis, values),
                time_words(axis.sent_bytes / _link_bytes_per_s(axis, values)),
            )
            for axis in axes
        ),
    )


def _notes(axes: Sequence[Axis], values: Values) -> tuple[str, ...]:
    by_name = {axis.name: axis for axis in axes}
    notes = []
    tensor = by_name["tp"]
    if not tensor.inside:
        slow = tensor.sent_bytes / presets.LINKS[values["link"]]
        fast = tensor.sent_bytes / presets.GPUS[values["gpu"]].nvlink_bytes_per_s
        notes.append(say("cube.note_tp_across", slow=time_words(slow), fast=time_words(fast)))
    if values["tp"] > 1 and values["pp"] > 1 and not values["sp"]:
        notes.append(say("cube.note_redundant", tp=values["tp"]))
    notes.append(say("cube.note_link"))
    return tuple(notes)


def _adopt(job: Job) -> dict[str, object]:
    known = job.model.name in MODELS and job.model == presets.model(job.model.name)
    state: dict[str, object] = {name: sizes.nearest(DEGREES, getattr(job.parallel, name)) for name in AXES}
    state["micro_batches"] = sizes.nearest(MICRO_BATCHES, job.gradient_accumulation)
    state["per_node"] = sizes.nearest(NODES, job.hardware.gpus_per_node)
    state["sp"] = job.train.sequence_parallel
    state["rank"] = 0
    if known:
        state["model"] = job.model.name
    if job.hardware.gpu in sizes.GPUS:
        state["gpu"] = job.hardware.gpu
    while state["dp"] * state["tp"] * state["pp"] > drawing.WORLD:  # type: ignore[operator]
        state["dp"] = state["dp"] // 2  # type: ignore[operator]
    return state


_LAYOUT, _CLUSTER, _RUN = (say(f"cube.section_{name}") for name in ("layout", "cluster", "run"))

EXPLORER = Explorer(
    id="rank-cube",
    title=say("cube.title"),
    lead=say("cube.lead"),
    controls=(
        Number(
            name="rank",
            label=say("cube.rank"),
            default=0,
            minimum=0,
            maximum=drawing.WORLD - 1,
            group=_LAYOUT,
            help=say("cube.rank_help"),
            suggestions=("1", "9", "100", "511", "1023"),
        ),
        Choice(
            name="order",
            label=say("cube.order"),
            default="article",
            group=_LAYOUT,
            options=tuple((name, say(f"cube.order_{name}")) for name in ORDERS),
        ),
        *(
            Slider(
                name=name,
                label=say(f"cube.degree_{name}"),
                default=16 if name == "dp" else 8,
                group=_LAYOUT,
                options=scale(DEGREES if name == "dp" else DEGREES[:5]),
                job_field=f"parallel.{name}",
            )
            for name in ("dp", "tp", "pp")
        ),
        Choice(
            name="per_node",
            label=say("cube.per_node"),
            default=8,
            group=_CLUSTER,
            options=scale(NODES),
            job_field="hardware.gpus_per_node",
        ),
        sizes.gpu_control(group=_CLUSTER),
        Choice(
            name="link",
            label=say("cube.link"),
            default="ib-hdr-200",
            group=_CLUSTER,
            options=tuple(
                (name, say("cube.link_text", name=name, rate=f"{presets.LINKS[name] / GB:g}"))
                for name in LINKS
            ),
        ),
        sizes.preset_control("gpt3-175b", MODELS, group=_RUN),
        Slider(
            name="micro_batches",
            label=say("cube.micro_batches"),
            default=96,
            group=_RUN,
            options=scale(MICRO_BATCHES),
        ),
        Toggle(name="sp", label=say("cube.sp"), group=_RUN),
    ),
    view=_view,
    adopt_job=_adopt,
)
