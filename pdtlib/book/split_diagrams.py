"""Small drawings for the chapters on tensor and sequence parallelism, as SVG in the page's colours."""

from __future__ import annotations

from pdtlib.book.diagrams import COLOURS, Drawing, box, svg, text
from pdtlib.plan.sharding import shard_range

WEIGHT, DATA, SENT = COLOURS["parameters"], COLOURS["activations"], COLOURS["gradients"]


def paired_cuts(*, ranks: int = 2) -> Drawing:
    """An MLP cut by columns, then by rows: what each rank has, and the bars f and g across all ranks."""
    lane, top, tall = 62.0, 34.0, 40.0
    height = int(top + ranks * lane + 4)
    shapes = []
    names = ((46, "X"), (104, "A"), (172, "H"), (228, "B"), (282, "part of Y"), (352, "Y"))
    shapes += [text(x, 14, name, anchor="middle", bold=True) for x, name in names]
    for rank in range(ranks):
        y = top + rank * lane + 6
        start, stop = (bound / ranks for bound in shard_range(ranks, ranks, rank))
        shapes.append(text(0, y + tall / 2 + 4, f"GPU {rank}"))
        shapes.append(box(36, y, 20, tall, DATA))
        shapes.append(box(74, y, 60, tall, WEIGHT, opacity=0.12))
        shapes.append(box(74 + start * 60, y, (stop - start) * 60, tall, WEIGHT))
        shapes.append(box(150, y, 44, tall, DATA, opacity=0.12))
        shapes.append(box(150 + start * 44, y, (stop - start) * 44, tall, DATA))
        shapes.append(box(214, y, 28, tall, WEIGHT, opacity=0.12))
        shapes.append(box(214, y + start * tall, 28, (stop - start) * tall, WEIGHT))
        shapes.append(box(272, y, 20, tall, DATA, opacity=0.45))
        shapes.append(box(342, y, 20, tall, DATA))
    span = ranks * lane - (lane - tall) + 8
    for x, name in ((62, "f"), (314, "g")):
        shapes.append(box(x, top + 2, 5, span, SENT))
        shapes.append(text(x + 2.5, 28, name, anchor="middle", bold=True))
    sentence = (
        f"An MLP on {ranks} GPUs. Each has all of X, another 1/{ranks} of the columns of A, and so of H, "
        "and the rows of B that belong to them. Its product is a part of Y. At g the parts are summed "
        "over the GPUs. At f the gradients of X are summed on the way back."
    )
    return Drawing(svg(366, height, sentence, shapes, max_width_px=640), sentence)
