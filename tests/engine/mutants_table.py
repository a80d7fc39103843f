"""What ``make mutants`` runs for each module of the engine, and what it leaves out."""

from fnmatch import fnmatchcase

NO_GPU = "NCCL's way; the tests run on gloo"
RACE = "it keeps ranks from overtaking each other: without it a run may go wrong, and no test can make it"

EXCLUDED = {
    # patterns of sites' names -> why they are left out
    "pdtlib/engine/calibration.py*": "it measures a machine and trains nothing (tests/cli has its tests)",
    "pdtlib/engine/transfers.py::: dist.*": NO_GPU,
    "pdtlib/engine/transfers.py::start_ring_shift: dist.isend": NO_GPU,
    "pdtlib/engine/transfers.py::start_ring_shift: dist.irecv": NO_GPU,
    "pdtlib/engine/transfers.py::start_ring_shift: dist.batch_isend_irecv*": NO_GPU,
    "pdtlib/engine/pipeline/copies.py::start_sum: dist.*": NO_GPU,
    "pdtlib/engine/dist.py::_worker: dist.barrier*": RACE,
    "pdtlib/engine/training/checkpoint.py::save: dist.barrier*": RACE,
    "pdtlib/engine/training/loop.py::_on_rank_0: dist.barrier*": RACE,
}

EQUIVALENT: dict[str, str] = {}
"""Sites' names -> why training without them is the same."""

ENGINE, TRAIN = "tests/engine/test_", "tests/train/test_"
TWO_RANKS = [
    f"{ENGINE}equality.py::test_equals_one_process[2-mixed-{variant}]"
    for variant in ("ddp", "zero1", "zero2", "zero3")
]
EQUAL = [*TWO_RANKS, f"{ENGINE}equality.py"]
TENSOR = [
    f"{ENGINE}tensor_parallel_mutants.py::test_norm_counts_replicated_gradients_once",
    f"{ENGINE}tensor_parallel.py",
    f"{ENGINE}parallelize.py",
]
EXPERTS = [f"{ENGINE}expert_parallel.py"]
CONTEXT = [f"{ENGINE}context_parallel.py"]
PIPELINE = [
    f"{ENGINE}pipeline_behaviour.py::test_messages_are_the_tables",
    f"{ENGINE}pipeline_behaviour.py::test_tied_copies_start_equal",
    f"{ENGINE}pipeline.py",
]

TESTS: dict[str, list[str]] = {
    # beginnings of modules' paths -> tests, the quickest first; the first match counts
    "pdtlib/engine/clip.py": [*TENSOR[:1], *EQUAL, *TENSOR[1:2], *EXPERTS, *PIPELINE[-1:]],
    "pdtlib/engine/transfers.py": [f"{ENGINE}collectives.py", *CONTEXT],
    "pdtlib/engine/collectives": [f"{ENGINE}collectives.py"],
    "pdtlib/engine/context_parallel/": CONTEXT,
    "pdtlib/engine/data_parallel/cut.py": [*TENSOR[1:]],
    "pdtlib/engine/data_parallel/flat.py": [f"{ENGINE}token_mean.py", *EQUAL],
    "pdtlib/engine/data_parallel/": [f"{ENGINE}token_mean.py", *EQUAL],
    "pdtlib/engine/expert_parallel/": EXPERTS,
    "pdtlib/engine/loss.py": [f"{ENGINE}token_mean.py", f"{ENGINE}parallelize.py"],
    "pdtlib/engine/models/balance.py": [f"{ENGINE}moe.py", *EXPERTS],
    "pdtlib/engine/models/moe.py": [f"{ENGINE}moe.py"],
    "pdtlib/engine/models/": [f"{TRAIN}models.py", f"{TRAIN}hugging_face.py"],
    "pdtlib/engine/optimizer.py": [f"{ENGINE}precision.py", *EQUAL],
    "pdtlib/engine/precision.py": [f"{ENGINE}precision.py"],
    "pdtlib/engine/pipeline/": PIPELINE,
    "pdtlib/engine/self_check.py": [f"{ENGINE}collectives.py"],
    "pdtlib/engine/tensor_parallel/table.py": [*TENSOR[1:], *EXPERTS],
    "pdtlib/engine/tensor_parallel/": [*TENSOR[1:], *EXPERTS],
    "pdtlib/engine/training/checks.py": [f"{TRAIN}refusals.py::test_more_memory_than_there_is"],
    "pdtlib/engine/training/loop.py": [f"{TRAIN}variants.py::test_the_learning_rate_rises_over_warm_up"],
    "pdtlib/engine/training/report.py": [f"{TRAIN}report.py"],
    "pdtlib/engine/training/saver.py": [f"{TRAIN}saver.py"],
    "pdtlib/engine/training/spread.py": [f"{TRAIN}spread.py"],
    "pdtlib/engine/training/": [*EXPERTS, f"{ENGINE}parallelize.py"],
}


def tests_of(module: str) -> list[str]:
    """The tests that should notice a mutant of ``module``. Raises KeyError for a module without any."""
    for beginning, tests in TESTS.items():
        if module.startswith(beginning):
            return tests
    raise KeyError(f"{module} has messages or divisions: name its tests in {__name__}.TESTS")


def excluded(name: str) -> str | None:
    """Why a site is left out; None for those that are not."""
    return next((why for pattern, why in EXCLUDED.items() if fnmatchcase(name, pattern)), None)
