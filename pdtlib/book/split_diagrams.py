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


def zigzag(*, ranks: int = 4) -> Drawing:
    """Causal attention as a triangle of positions, and which rows two ways to deal them out give a rank."""
    side, gap, top = 150.0, 34.0, 40.0
    pieces = 2 * ranks
    shapes, shares = [], []
    for column, (name, owned) in enumerate(
        (
            ("in order", lambda rank: (2 * rank, 2 * rank + 1)),
            ("zigzag", lambda rank: (rank, pieces - 1 - rank)),
        )
    ):
        left = 4 + column * (side + gap)
        shapes.append(text(left + side / 2, 14, name, anchor="middle", bold=True))
        work = []
        for rank in range(ranks):
            work.append(sum(2 * piece + 1 for piece in owned(rank)))
            for piece in owned(rank):
                y = top + piece * side / pieces
                wide = (piece + 1) * side / pieces
                opacity = 0.2 + 0.8 * rank / (ranks - 1)
                shapes.append(box(left, y, wide, side / pieces - 1.5, DATA, opacity=opacity))
                shapes.append(text(left + wide + 4, y + 13, str(rank)))
        shares.append([100 * part / sum(work) for part in work])
        listed = " · ".join(f"{share:.0f} %" for share in shares[-1])
        shapes.append(text(left + side / 2, top + side + 16, listed, anchor="middle"))
    shapes.append(text(4 + side + gap / 2, 30, "queries ↓   keys →", anchor="middle"))
    in_order, dealt = (", ".join(f"{share:.0f} %" for share in part) for part in shares)
    sentence = (
        "Causal attention is a triangle: a late position looks at many keys, an early one at few. Of the "
        f"work, {ranks} ranks with runs of positions in order have {in_order}. With one early and one late "
        f"piece each they have {dealt}."
    )
    return Drawing(svg(354, int(top + side + 24), sentence, shapes, max_width_px=600), sentence)
