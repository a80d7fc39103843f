"""Schedules for tests: every name with small sizes, and random ones."""

from hypothesis import strategies as st

from pdtlib.plan.schedule import FAMILIES, NAMES, Costs, Schedule, build


def sizes(name: str, most_stages: int, most_microbatches: int):
    """(stages, microbatches, chunks) that the schedule takes, exhaustively."""
    for stages in range(1, most_stages + 1):
        if name == "dualpipe" and stages % 2:
            continue
        for microbatches in range(1, most_microbatches + 1):
            for chunks in (1, 2, 3) if name == "interleaved" else (None,):
                yield stages, microbatches, chunks


@st.composite
def schedules(draw, *, most_stages: int = 7, most_microbatches: int = 20) -> Schedule:
    name = draw(st.sampled_from(NAMES))
    stages = draw(st.integers(1, most_stages))
    if name == "dualpipe":
        stages += stages % 2
    chunks = draw(st.integers(1, 4)) if FAMILIES[name].chunks is None else None
    microbatches = draw(st.integers(1, most_microbatches))
    return build(name, stages=stages, microbatches=microbatches, chunks=chunks)


@st.composite
def costs(draw, schedule: Schedule, *, least: float = 0.25) -> Costs:
    """Times per position, unequal, and a transfer time."""
    times = st.lists(
        st.integers(1, 16).map(lambda quarters: max(least, quarters / 4)),
        min_size=schedule.layout.length,
        max_size=schedule.layout.length,
    )
    return Costs(
        forward=draw(times),
        backward_input=draw(times),
        backward_weight=draw(times),
        transfer=draw(st.sampled_from([0.0, 0.25, 1.5])),
    )
