"""What each framework accepts."""

import pytest

from pdtlib.plan.schedule import NAMES, build, schedule_problems, to_torch_csv


def refused(name, target, stages=4, microbatches=8, chunks=None):
    problems = schedule_problems(name, stages=stages, microbatches=microbatches, chunks=chunks, target=target)
    return [(problem.field, problem.valid) for problem in problems]


def test_we_refuse_what_cannot_be_built():
    for name in NAMES:
        for stages in range(1, 6):
            for microbatches in (1, 3, 8):
                problems = refused(name, "pdtlib", stages, microbatches)
                if problems:
                    with pytest.raises(ValueError, match=f"{problems[0][0]}="):
                        build(name, stages=stages, microbatches=microbatches)
                else:
                    build(name, stages=stages, microbatches=microbatches)


@pytest.mark.parametrize(
    ("name", "target", "microbatches", "expected"),
    [
        ("interleaved", "megatron", 10, [("microbatches", (8, 12))]),
        ("interleaved", "megatron", 3, [("microbatches", (4,))]),
        ("interleaved", "megatron", 8, []),
        ("1f1b", "megatron", 3, []),
        ("gpipe", "megatron", 8, [("schedule", ("1f1b", "interleaved"))]),
        ("1f1b", "torch", 3, [("microbatches", (4,))]),
        ("1f1b", "torch", 4, []),
        ("gpipe", "torch", 1, []),
        ("interleaved", "torch", 10, []),  # two rounds of five
        ("interleaved", "torch", 9, [("microbatches", (8, 10))]),
        ("zb-v", "torch", 1, []),
        ("dualpipe", "torch", 8, [("schedule", ("gpipe", "1f1b", "interleaved", "zb-v"))]),
        ("1f1b", "deepspeed", 2, []),
        ("interleaved", "deepspeed", 8, [("schedule", ("1f1b",))]),
    ],
)
def test_rules(name, target, microbatches, expected):
    assert refused(name, target, microbatches=microbatches) == expected


def test_unknown_names():
    with pytest.raises(ValueError, match="schedule='2f2b'; valid: naive"):
        refused("2f2b", "torch")
    with pytest.raises(ValueError, match="target='jax'; valid: pdtlib, megatron, torch, deepspeed"):
        refused("1f1b", "jax")


def test_two_way_tables_are_no_torch_tables():
    with pytest.raises(ValueError, match="layout='two-way': torch holds each stage once; valid: loop, vee"):
        to_torch_csv(build("dualpipe", stages=2, microbatches=4))
