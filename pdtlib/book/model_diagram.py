"""One layer of a Transformer as a picture: what follows what, and the sizes of its matrices."""

from __future__ import annotations

from pdtlib.book.diagrams import COLOURS, Drawing, box, svg, text
from pdtlib.plan.params import tensors
from pdtlib.plan.spec import Model

WEIGHT, DATA = COLOURS["parameters"], COLOURS["activations"]
STREAM, LEFT, WIDE, TALL, ROW = 22.0, 44.0, 128.0, 20.0, 30.0


def layer(model: Model) -> Drawing:
    """The first layer of a model without experts; matrices as "input → outputs", from the plan's list."""
    shapes_of = {spec.name.removeprefix("layers.0."): spec.shape for spec in tensors(model)}
    names = ("gate", "up") if model.activation == "swiglu" else ("up",)

    def sizes(part: str, *matrices: str) -> str:
        found = [shapes_of[f"{part}.{name}.weight"] for name in matrices]
        return f"{found[0][1]:,} → " + " + ".join(f"{out:,}" for out, _ in found)

    norm = "RMS norm" if model.norm == "rmsnorm" else "layer norm"
    function = "gate × up" if len(names) == 2 else "GELU"
    halves = (
        (
            (norm, ""),
            ("q, k, v", sizes("attn", "q", "k", "v")),
            ("attention", f"{model.heads} heads, s × s scores in each"),
            ("o", sizes("attn", "o")),
        ),
        (
            (norm, ""),
            (", ".join(names), sizes("mlp", *names)),
            (function, f"{model.ffn:,} numbers a token"),
            ("down", sizes("mlp", "down")),
        ),
    )
    rows = sum(len(half) + 1 for half in halves)
    bottom = 26 + rows * ROW
    drawn = [
        text(0, 12, f"a tensor of shape [b, s, {model.hidden:,}] comes in"),
        f'<line x1="{STREAM:g}" x2="{STREAM:g}" y1="20" y2="{bottom:g}" stroke="currentColor" '
        f'stroke-width="2" stroke-opacity="0.6"/>',
        text(0, bottom + 14, f"a tensor of shape [b, s, {model.hidden:,}] goes out"),
    ]
    y = 26.0
    for half in halves:
        drawn.append(_line(STREAM, y + TALL / 2, LEFT, y + TALL / 2))
        for name, size in half:
            has_matrix = "→" in size
            drawn.append(box(LEFT, y, WIDE, TALL, WEIGHT if has_matrix else DATA, opacity=0.3))
            drawn.append(text(LEFT + WIDE / 2, y + 14, name, anchor="middle", bold=has_matrix))
            drawn.append(text(LEFT + WIDE + 8, y + 14, size))
            drawn.append(_line(LEFT + WIDE / 2, y + TALL, LEFT + WIDE / 2, y + ROW))
            y += ROW
        drawn.append(_line(LEFT + WIDE / 2, y + TALL / 2, STREAM + 8, y + TALL / 2))
        drawn.append(_line(LEFT + WIDE / 2, y, LEFT + WIDE / 2, y + TALL / 2))
        drawn.append(
            f'<circle cx="{STREAM:g}" cy="{y + TALL / 2:g}" r="8" fill="{DATA}" fill-opacity="0.3" '
            f'stroke="{DATA}"/>'
        )
        drawn.append(text(STREAM, y + TALL / 2 + 4, "+", anchor="middle", bold=True))
        drawn.append(text(LEFT + WIDE + 8, y + 14, "added to what came in"))
        y += ROW
    steps = [", ".join(f"{name} ({size})" if size else name for name, size in half) for half in halves]
    sentence = (
        f"One layer. First half: {steps[0]}; the result is added to what came in. "
        f"Second half: {steps[1]}; again the result is added to what came in."
    )
    return Drawing(svg(366, int(bottom + 20), sentence, drawn, max_width_px=620), sentence)


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return (
        f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="currentColor" stroke-opacity="0.6"/>'
    )
