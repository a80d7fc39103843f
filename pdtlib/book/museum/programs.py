"""The museum's programs: in parallel, what the ``..._of_one`` before each computes in one process."""

import math
import random

from pdtlib.book.museum.exhibit import dealt

SAMPLES = [[1.0, 1.0, 1.0, 1.0], [6.0], [2.0, 2.0], [9.0]]
"""Four samples of different length: the loss of each token."""
WEIGHTS = [3.0, 4.0]
NORM_WEIGHT = 12.0
VECTOR = [1.0, -2.0, 3.0, 5.0, 8.0, -1.0, 2.0, 4.0]
ROW = [2.0, 1.0, 0.5, -1.0, 3.0, 1.5, -0.5, 1.0]
BIAS = 10.0
LAYERS = list(range(30))
DATA = list(range(24))


# Token means


def loss_of_one() -> float:
    tokens = [loss for sample in SAMPLES for loss in sample]
    return sum(tokens) / len(tokens)


def mean_of_means(ranks: int) -> float:
    means = []
    for share in dealt(SAMPLES, ranks):
        tokens = [loss for sample in share for loss in sample]
        means.append(sum(tokens) / len(tokens))
    return sum(means) / ranks  # all-reduce, averaged


def mean_of_tokens(ranks: int) -> float:
    sums = [sum(map(sum, share)) for share in dealt(SAMPLES, ranks)]
    counts = [sum(map(len, share)) for share in dealt(SAMPLES, ranks)]
    return sum(sums) / sum(counts)  # two all-reduces, both sums


# The norm of a gradient


def norm_of_one() -> float:
    return math.sqrt(sum(x * x for x in VECTOR) + NORM_WEIGHT**2)


def norm_counts_copies(ranks: int) -> float:
    squares = []
    for share in dealt(VECTOR, ranks):
        squares.append(sum(x * x for x in share) + NORM_WEIGHT**2)
    return math.sqrt(sum(squares))


def norm_counts_once(ranks: int) -> float:
    squares = [sum(x * x for x in share) for share in dealt(VECTOR, ranks)]
    return math.sqrt(sum(squares) + NORM_WEIGHT**2)


# The bias of a layer that is cut by rows


def row_layer_of_one() -> float:
    return sum(x * w for x, w in zip(VECTOR, ROW, strict=True)) + BIAS


def bias_on_every_rank(ranks: int) -> float:
    total = 0.0
    for xs, ws in zip(dealt(VECTOR, ranks), dealt(ROW, ranks), strict=True):
        total += sum(x * w for x, w in zip(xs, ws, strict=True)) + BIAS
    return total


def bias_after_the_sum(ranks: int) -> float:
    total = 0.0
    for xs, ws in zip(dealt(VECTOR, ranks), dealt(ROW, ranks), strict=True):
        total += sum(x * w for x, w in zip(xs, ws, strict=True))
    return total + BIAS


# Layers of a pipeline


def layers_of_one() -> list[int]:
    return LAYERS


def layers_floored(ranks: int) -> list[int]:
    size = len(LAYERS) // ranks
    found: list[int] = []
    for stage in range(ranks):
        found += LAYERS[stage * size : (stage + 1) * size]
    return found


def layers_dealt(ranks: int) -> list[int]:
    return [layer for share in dealt(LAYERS, ranks) for layer in share]


# A mean that is a sum


def mean_of_one() -> list[float]:
    return VECTOR


def reduced_by_sum(ranks: int) -> list[float]:
    copies = [VECTOR] * ranks  # every rank has the same gradient
    return [sum(column) for column in zip(*copies, strict=True)]


def reduced_by_mean(ranks: int) -> list[float]:
    copies = [VECTOR] * ranks
    return [sum(column) / ranks for column in zip(*copies, strict=True)]


# Samples after a restart


def samples_of_one() -> list[int]:
    return sorted(DATA)


def samples_by_position(ranks: int) -> list[int]:
    # Four workers read two samples each, then the run goes on with `ranks` workers.
    before = [share[:2] for share in dealt(DATA, 4)]
    after = [share[2:] for share in dealt(DATA, ranks)]  # at its own position
    return sorted(sample for share in (*before, *after) for sample in share)


def samples_by_step(ranks: int) -> list[int]:
    seen = 4 * 2
    before, left = DATA[:seen], DATA[seen:]
    return sorted([*before, *(sample for share in dealt(left, ranks) for sample in share)])


# The gradient of a LayerNorm on cut positions


def norm_gradient_of_one() -> float:
    return sum(x * g for x, g in zip(VECTOR, ROW, strict=True))


def norm_gradient_of_a_part(ranks: int) -> float:
    xs, grads = dealt(VECTOR, ranks)[0], dealt(ROW, ranks)[0]  # rank 0's
    return sum(x * g for x, g in zip(xs, grads, strict=True))


def norm_gradient_summed(ranks: int) -> float:
    total = 0.0
    for xs, grads in zip(dealt(VECTOR, ranks), dealt(ROW, ranks), strict=True):
        total += sum(x * g for x, g in zip(xs, grads, strict=True))
    return total


# Softmax over a vocabulary that is cut


def cross_entropy_of_one() -> float:
    return math.log(sum(map(math.exp, VECTOR))) - VECTOR[3]


def cross_entropy_own_maximum(ranks: int) -> float:
    shares = dealt(VECTOR, ranks)
    total = sum(math.exp(x - max(share)) for share in shares for x in share)
    return math.log(total) + max(VECTOR) - VECTOR[3]


def cross_entropy_common_maximum(ranks: int) -> float:
    largest = max(map(max, dealt(VECTOR, ranks)))  # all-reduce first
    total = sum(math.exp(x - largest) for share in dealt(VECTOR, ranks) for x in share)
    return math.log(total) + largest - VECTOR[3]


# Clipping


def clipped_of_one() -> list[float]:
    norm = math.sqrt(sum(x * x for x in VECTOR))
    return [x / norm for x in VECTOR]


def clipped_by_own_norm(ranks: int) -> list[float]:
    found = []
    for share in dealt(VECTOR, ranks):
        norm = math.sqrt(sum(x * x for x in share))
        found += [x / norm for x in share]
    return found


def clipped_by_common_norm(ranks: int) -> list[float]:
    squares = [sum(x * x for x in share) for share in dealt(VECTOR, ranks)]
    norm = math.sqrt(sum(squares))  # all-reduce first
    return [x / norm for share in dealt(VECTOR, ranks) for x in share]


# An epoch's order


def epoch_of_one() -> list[int]:
    return sorted(DATA)


def epoch_own_seeds(ranks: int) -> list[int]:
    found: list[int] = []
    for rank in range(ranks):
        order = random.Random(rank).sample(DATA, len(DATA))
        found += dealt(order, ranks)[rank]
    return sorted(found)


def epoch_common_seed(ranks: int) -> list[int]:
    found: list[int] = []
    for rank in range(ranks):
        order = random.Random(0).sample(DATA, len(DATA))
        found += dealt(order, ranks)[rank]
    return sorted(found)


# Micro-batches of a step


def batch_of_one() -> int:
    return 256


def batch_by_world_size(ranks: int) -> int:
    pipeline, micro_batch = 2, 4
    world_size = ranks * pipeline  # ranks: the replicas
    micro_batches = 256 // (micro_batch * world_size)
    return micro_batches * micro_batch * ranks


def batch_by_replicas(ranks: int) -> int:
    micro_batch = 4
    micro_batches = 256 // (micro_batch * ranks)  # the replicas
    return micro_batches * micro_batch * ranks


# Tied embeddings on two stages, with replicas


FIRST_STAGE = [1.0, 2.0, 3.0, 4.0]
LAST_STAGE = [10.0, 20.0, 30.0, 40.0]
"""An embedding's gradient on the first and on the last stage, by replica."""


def tied_of_one() -> list[float]:
    whole = sum(FIRST_STAGE) + sum(LAST_STAGE)
    return [whole / 4, whole / 4]


def tied_not_joined(ranks: int) -> list[float]:
    return [_mean(FIRST_STAGE, ranks), _mean(LAST_STAGE, ranks)]


def tied_joined(ranks: int) -> list[float]:
    joined = _mean(FIRST_STAGE, ranks) + _mean(LAST_STAGE, ranks)
    return [joined, joined]


def _mean(gradients: list[float], ranks: int) -> float:
    return sum(sum(share) for share in dealt(gradients, ranks)) / len(gradients)
