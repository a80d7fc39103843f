"""Grades an exact parameter count against the tensors of :mod:`pdtlib.plan.params`.

A wrong count is compared with the counts of the usual slips, alone and in pairs, to say which one it is.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations

from pdtlib.exercises.compare import same_int
from pdtlib.exercises.report import Check
from pdtlib.exercises.source import ReaderCode, ReaderError, call
from pdtlib.plan import presets
from pdtlib.plan.params import count
from pdtlib.plan.spec import Model

SHOWN_MODELS = (
    ("GPT-2", "gpt2"),
    ("Llama 2 7B", "llama2-7b"),
    ("Llama 3 8B, with GQA", "llama3-8b"),
    ("Llama 3 70B", "llama3-70b"),
)
FIELDS = (
    *("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "seq"),
    *("activation", "norm", "positions", "biases", "tied_embeddings"),
)

# A slip: what it says, and the shape whose exact count the slip amounts to.
SLIPS: tuple[tuple[str, Callable[[Model], Model]], ...] = (
    (
        "k and v are counted as wide as q. Under GQA they have kv_heads × head_dim outputs.",
        lambda m: replace(m, kv_heads=m.heads),
    ),
    (
        "A SwiGLU MLP has three matrices (gate, up, down), a GELU MLP two (up, down).",
        lambda m: replace(m, activation="gelu" if m.activation == "swiglu" else "swiglu"),
    ),
    (
        "Tied embeddings: embedding and head are one matrix, counted once. Untied, they are two.",
        lambda m: replace(m, tied_embeddings=not m.tied_embeddings),
    ),
    (
        "A layernorm has a weight and a bias, an rmsnorm only a weight.",
        lambda m: replace(m, norm="rmsnorm" if m.norm == "layernorm" else "layernorm"),
    ),
    (
        "Learned positions are a table of seq × hidden parameters; rotary positions have none.",
        lambda m: replace(m, positions="rotary" if m.positions == "learned" else "learned"),
    ),
    ("The biases are missing.", lambda m: replace(m, biases="none")),
    (
        'The biases don\'t follow the field: "qkv" has them on q, k and v, "all" on o and the MLP too.',
        lambda m: replace(m, biases="qkv" if m.biases == "all" else "all"),
    ),
    (
        "head_dim is a field of its own: q has heads × head_dim outputs, which need not be hidden.",
        lambda m: replace(m, head_dim=m.hidden // m.heads),
    ),
    (
        "The inner size of the MLP is model.ffn, not 4 × hidden.",
        lambda m: replace(m, ffn=4 * m.hidden),
    ),
)


def grade(code: ReaderCode, rng: random.Random) -> Iterator[Check]:
    """Known models first, then hidden shapes: one of each family, then mixtures of every field."""
    yield from (_check(code, title, presets.model(preset)) for title, preset in SHOWN_MODELS)
    yield _check(code, "a GPT of a hidden shape", _drawn(rng, "gpt"))
    yield _check(code, "a Llama of a hidden shape", _drawn(rng, "llama"))
    for number in range(1, 5):
        yield _check(code, f"hidden mixture {number}", _drawn(rng, "mixture"))


def _drawn(rng: random.Random, family: str) -> Model:
    kv_heads = rng.choice((2, 3, 4))
    heads = kv_heads * rng.choice((2, 3, 4))
    head_dim = rng.choice((16, 24, 40))
    hidden = heads * head_dim + rng.choice((0, 8, 16)) * heads
    gpt = rng.random() < 0.5 if family == "mixture" else family == "gpt"
    mixed = family == "mixture"
    return Model(
        layers=rng.randint(2, 40),
        hidden=hidden,
        heads=heads,
        kv_heads=heads if family == "gpt" else kv_heads,
        head_dim=head_dim,
        ffn=rng.randint(100, 999),
        vocab=rng.randint(1_000, 60_000),
        seq=rng.randint(100, 5_000),
        activation="gelu" if gpt else "swiglu",
        norm=rng.choice(("layernorm", "rmsnorm")) if mixed else "layernorm" if gpt else "rmsnorm",
        positions=rng.choice(("learned", "rotary")) if mixed else "learned" if gpt else "rotary",
        tied_embeddings=rng.random() < 0.5 if mixed else gpt,
        biases=rng.choice(("none", "qkv", "all")) if mixed else "all" if gpt else "none",
    )


def _check(code: ReaderCode, title: str, model: Model) -> Check:
    expected = count(model).total
    try:
        # A copy: a program that changes the model it was given changes only its own.
        got = call(code.function("param_count"), replace(model))
    except ReaderError as error:
        return Check(name=f"{title}: runs", passed=False, message=f"{error}\n{_told(model)}")
    check = same_int(title, expected=expected, got=got)
    if check.passed or check.message:
        return check
    return replace(check, message=f"{diagnose(model, got)}\n{_told(model)}")


def _told(model: Model) -> str:
    return "The model: " + ", ".join(f"{name}={getattr(model, name)!r}" for name in FIELDS)


def diagnose(model: Model, got: int) -> str:
    """The slip, or the two slips, that turn the right count into ``got``."""
    right = count(model).total
    offsets = [(text, count(slip(model)).total - right) for text, slip in SLIPS]
    h = model.hidden
    norm = 2 * h if model.norm == "layernorm" else h
    q = model.heads * model.head_dim
    offsets += [
        ("The norm after the last block is missing.", -norm),
        ("Every block has two norms; only one of them is counted.", -norm * model.layers),
        ("The two norms of every block are missing.", -2 * norm * model.layers),
        ("The matrix of the attention's output, o, is missing.", -q * h * model.layers),
        ("The head has no bias.", model.vocab),
        ("Only one block is counted: multiply by layers.", count(replace(model, layers=1)).total - right),
    ]
    useful = [(text, offset) for text, offset in offsets if offset]
    for text, offset in useful:
        if offset == got - right:
            return text
    for (first, one), (second, other) in combinations(useful, 2):
        if one + other == got - right:
            return f"{first}\n{second}"
    low = "few" if got < right else "many"
    return (
        f"{abs(got - right):,} too {low}. Write down every tensor with its shape and compare term by term: "
        "embedding, positions, per block q, k, v, o, MLP and two norms, the last norm, the head."
    )
