"""Controls that several explorers share: which model (or how many parameters), which GPU, which pass."""

from __future__ import annotations

from collections.abc import Sequence

from pdtlib.explore.controls import Choice, Control, Number, Slider, scale
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
STYLES = {"gpt": "gelu", "llama": "swiglu"}
SHAPE: dict[str, tuple[int, int, int, tuple[str, ...]]] = {
    # default, least, most, suggestions
    "layers": (32, 1, 1000, ("24", "48", "80")),
    "hidden": (4096, 64, 2**20, ("2048", "8192", "16384")),
    "heads": (32, 1, 1024, ("16", "64", "128")),
    "kv_heads": (8, 1, 1024, ("4", "16")),
    "ffn": (14336, 64, 2**22, ("8192", "28672", "53248")),
    "vocab": (128256, 2, 2**24, ("32000", "50304")),
}
GPUS = ("A100-SXM4-40", "A100-SXM4-80", "H100-SXM5", "H200", "B200", "GB300", "MI300X")

PRICES = (0.0, 0.8, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 8.0, 12.0)  # the span of gpu_specs' price notes


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


def shape_controls(*, group: str) -> tuple[Control, ...]:
    """The style and the sizes of the reader's own model, shown while :data:`OWN` is chosen."""
    own = ("model", (OWN,))
    style = Choice(
        name="style",
        label=say("memory.style"),
        default="llama",
        group=group,
        options=(("gpt", say("memory.style_gpt")), ("llama", say("memory.style_llama"))),
        when=own,
    )
    numbers = (
        Number(
            name=name,
            label=say(f"memory.{name}"),
            default=default,
            minimum=low,
            maximum=high,
            group=group,
            when=own,
            suggestions=suggestions,
            job_field=f"model.{name}",
        )
        for name, (default, low, high, suggestions) in SHAPE.items()
    )
    return (style, *numbers)


def shape_of(values: Values) -> dict[str, object]:
    """The fields of ``[model]`` that :func:`shape_controls` stand for."""
    return {"activation": STYLES[values["style"]], **{name: values[name] for name in SHAPE}}


def adopted_shape(job: Job) -> dict[str, object]:
    """What the model controls show for a model that they have no name for."""
    style = next(style for style, activation in STYLES.items() if activation == job.model.activation)
    return {"model": OWN, "style": style, **{name: getattr(job.model, name) for name in SHAPE}}


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


def price_text(price: float) -> str:
    """The price of a GPU-hour in words; 0 is none."""
    return say("time.price_text", price=price) if price else say("time.price_none")


def price_control(*, default: float, group: str) -> Slider:
    """The price of a GPU-hour in dollars."""
    return Slider(
        name="price",
        label=say("time.price"),
        default=default,
        group=group,
        options=scale(PRICES, price_text),
    )


def nearest(options: tuple[int, ...] | range, wanted: int) -> int:
    """The option nearest to a number; of two equally near ones the smaller."""
    return min(options, key=lambda option: (abs(option - wanted), option))
