"""Controls that several explorers share: which model (or how many parameters), which GPU, which pass."""

from __future__ import annotations

from collections.abc import Sequence

from pdtlib.explore.controls import Choice, Number, Slider, scale
from pdtlib.explore.explorer import Values
from pdtlib.figures.amounts import count_words, gb_words
from pdtlib.figures.words import say
from pdtlib.plan import presets
from pdtlib.plan.job import Job
from pdtlib.plan.params import count

ROUND = {"70b": presets.ARTICLE_70B_PARAMS, "7.5b": 7_500_000_000}
ROUND_OWNERS = {"70b": "size.article", "7.5b": "size.paper"}
NAMED = (
    "gpt2-xl",
    "llama2-7b",
    "llama3-8b",
    "qwen2.5-14b",
    "qwen2.5-32b",
    "mixtral-8x7b",
    "llama2-70b",
    "llama3-70b",
    "gpt3-175b",
    "llama3-405b",
    "mt-nlg-530b",
)
OWN = "own"
GPUS = ("A100-SXM4-40", "A100-SXM4-80", "H100-SXM5", "H200", "B200", "GB300", "MI300X")


def named_text(name: str) -> str:
    """A preset's name with its exact count, rounded for the eye."""
    return say("size.named", name=name, count=count_words(count(presets.model(name)).total))


def model_controls(default: str, *, group: str = "") -> tuple[Choice, Number]:
    """A choice of model by name or round count, and a number of parameters for the reader's own."""
    round_options = tuple(
        (key, say("size.round", count=count_words(number), who=say(ROUND_OWNERS[key])))
        for key, number in ROUND.items()
    )
    named = tuple((name, named_text(name)) for name in NAMED)
    choice = Choice(
        name="model",
        label=say("size.label"),
        default=default,
        group=group,
        options=(*round_options, *named, (OWN, say("size.own"))),
        job_field="model.preset",
    )
    own = Number(
        name="params",
        label=say("size.params"),
        default=13_000_000_000,
        minimum=1e3,
        maximum=1e14,
        group=group,
        help=say("size.params_help"),
        when=("model", (OWN,)),
        suggestions=("1B", "13B", "175B", "1T"),
    )
    return choice, own


def preset_control(default: str, names: Sequence[str], *, group: str, label: str = "") -> Choice:
    """A choice among models by name."""
    return Choice(
        name="model",
        label=label or say("size.label"),
        default=default,
        group=group,
        options=tuple((name, named_text(name)) for name in names),
        job_field="model.preset",
    )


def seq_control(default: int, lengths: tuple[int, ...], *, group: str) -> Slider:
    """The length of a sequence in tokens."""
    return Slider(
        name="seq",
        label=say("memory.seq"),
        default=default,
        group=group,
        options=scale(lengths, lambda seq: f"{seq:,}"),
    )


def direction_control(*, group: str) -> Choice:
    """Forward or backward pass."""
    return Choice(
        name="direction",
        label=say("split.direction"),
        default="forward",
        group=group,
        options=(("forward", say("split.forward")), ("backward", say("split.backward"))),
    )


def num_params(values: Values) -> int:
    """The number of parameters that the model controls stand for."""
    choice = values["model"]
    if choice == OWN:
        return int(values["params"])
    return ROUND[choice] if choice in ROUND else count(presets.model(choice)).total


def adopted_model(job: Job) -> dict[str, object]:
    """The model controls for a job: its preset by name, else its number of parameters."""
    if job.model.name in NAMED and job.model == presets.model(job.model.name):
        return {"model": job.model.name}
    return {"model": OWN, "params": count(job.model).total}


def gpu_control(default: str = "A100-SXM4-80", *, group: str = "") -> Choice:
    """A choice of GPU with its memory."""
    texts = {
        name: say("cluster.gpu_text", name=name, memory=gb_words(presets.GPUS[name].memory_bytes))
        for name in GPUS
    }
    return Choice(
        name="gpu",
        label=say("cluster.gpu"),
        default=default,
        group=group,
        options=tuple(texts.items()),
        job_field="hardware.gpu",
    )


def nearest(options: tuple[int, ...] | range, wanted: int) -> int:
    """The option nearest to a number; of two equally near ones the smaller."""
    return min(options, key=lambda option: (abs(option - wanted), option))
