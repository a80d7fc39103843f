"""Every lab runs from its launch line, agrees with the plan to the byte, and prints what it should."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from lab_running import ROOT, command, comparable, load, run

from pdtlib.book import lab as labs
from pdtlib.plan.activations import Setting
from pdtlib.plan.job import from_dict, replace

FOLDERS = sorted(path.parent for path in ROOT.glob("labs/[0-9]*_*/lab.py"))


def test_every_lab_has_its_parts() -> None:
    assert [folder.name[:3] for folder in FOLDERS] == [f"{number:02d}_" for number in range(1, 10)]
    for folder in FOLDERS:
        assert (folder / "README.md").exists()
        assert (folder / "expected.txt").exists()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_readme_begins_with_the_launch_line(folder: Path) -> None:
    """The line that a reader copies is the one that chapters, `make lab` and these tests run."""
    readme = (folder / "README.md").read_text(encoding="utf-8")
    first = next(line.strip() for line in readme.splitlines()[1:] if line.strip())
    assert first == labs.launch_line(folder / "lab.py")
    assert (ROOT / shlex.split(first)[-1]).samefile(folder / "lab.py")


def test_the_index_has_every_lab_with_its_processes() -> None:
    index = (ROOT / "chapters/labs.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d\d) \| \d+ \| .+ \| ([\d a-z]+) \| .+ \|$", index, re.M)
    assert [number for number, _ in rows] == [folder.name[:2] for folder in FOLDERS]
    for (_, processes), folder in zip(rows, FOLDERS, strict=True):
        started = re.search(r"--nproc-per-node (\d+)", labs.launch_line(folder / "lab.py"))
        assert started is None or processes == started.group(1), folder.name


def test_readmes_name_only_options_that_exist() -> None:
    for folder in FOLDERS:
        readme = (folder / "README.md").read_text(encoding="utf-8")
        module = load(folder / "lab.py", f"options_of_{folder.name}")
        named = set(re.findall(r"--preset ([a-z-]+)", readme)) | set(
            re.findall(r"^\| `([a-z-]+)`", readme, re.M)
        )
        presets = set(getattr(module, "PRESETS", ()))
        assert bool(named) == bool(presets), folder.name
        assert named <= presets


def test_the_index_has_a_line_for_every_lab() -> None:
    """Its number of processes is the launch line's; labs 08 and 09 start their processes themselves."""
    index = (ROOT / "chapters/labs.md").read_text(encoding="utf-8")
    table = dict(re.findall(r"^\| (\d\d) \|.*\| ([\d and]+) \|[^|]*\|$", index, re.M))
    assert list(table) == [folder.name[:2] for folder in FOLDERS]
    for folder in FOLDERS[:7]:
        words = shlex.split(labs.launch_line(folder / "lab.py"))
        started = words[words.index("--nproc-per-node") + 1] if words[0] == "torchrun" else "1"
        assert table[folder.name[:2]] == started
    last = load(FOLDERS[8] / "lab.py", "processes_of_lab_09")
    assert table["09"] == f"{last.RANKS} and {last.WORKERS}"
    assert "2 processes" in (FOLDERS[7] / "expected.txt").read_text(encoding="utf-8").splitlines()[0]
    assert table["08"] == "2"


def test_lab_01_agrees_to_the_byte(tmp_path: Path) -> None:
    folder = FOLDERS[0]
    done = run(command(folder, "--json", str(tmp_path / "report.json")))
    assert done.returncode == 0, done.stderr
    assert comparable(done.stdout) == comparable((folder / "expected.txt").read_text(encoding="utf-8"))
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert len(report["cases"]) == 6
    for case in report["cases"]:
        for row in case["tensors"]:
            assert row["measured_bytes"] == row["predicted_bytes"], (case["name"], row)
            assert row["error_bytes"] == 0
            assert row["measured_bytes"] > 0


@pytest.fixture(scope="module")
def lab_01() -> ModuleType:
    return load(FOLDERS[0] / "lab.py", "lab_01")


def test_lab_01_notices_what_a_prediction_leaves_out(
    lab_01: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Predict for a CPU what the papers say of a GPU: masks of two bytes and statistics are off."""
    monkeypatch.setattr(lab_01, "cpu_layer_tensors", lab_01.layer_tensors)
    first = lab_01.cases("laptop")[0]
    report = lab_01.compare(first, device=torch.device("cpu"))
    off = {row["tensor"] for row in report["tensors"] if row["error_bytes"]}
    assert off == {
        "softmax dropout mask",
        "attention dropout mask",
        "mlp dropout mask",
        "causal mask",
        "attn_norm statistics",
        "mlp_norm statistics",
    }


def test_lab_01_notices_a_tensor_that_is_not_kept(lab_01: ModuleType) -> None:
    """Predict a layer without recomputation, run one with it: every tensor but the first is missing."""
    plain = lab_01.cases("laptop")[3]
    run_layer = lab_01.saved.run_layer

    def recomputed(model: object, setting: Setting, *, device: torch.device) -> object:
        return run_layer(model, Setting(**{**setting.__dict__, "recompute": "full"}), device=device)

    lab_01.saved.run_layer = recomputed
    try:
        report = lab_01.compare(plain, device=torch.device("cpu"))
    finally:
        lab_01.saved.run_layer = run_layer
    assert all(row["error_bytes"] for row in report["tensors"])


@pytest.mark.parametrize("processes", [4, 3])
def test_lab_02_agrees_with_the_plan_and_with_one_process(processes: int, tmp_path: Path) -> None:
    folder = FOLDERS[1]
    done = run(command(folder, "--json", str(tmp_path / "report.json"), processes=processes))
    assert done.returncode == 0, done.stdout + done.stderr
    if processes == 4:
        assert comparable(done.stdout) == comparable((folder / "expected.txt").read_text(encoding="utf-8"))
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert [stage["stage"] for stage in report["stages"]] == [0, 1, 2, 3]
    losses = report["one_process"]["losses"]
    assert losses[-1] < losses[0] - 0.5, "it does not learn"
    for stage in report["stages"]:
        assert stage["ranks_off_plan"] == []
        assert [row["error"] for row in stage["rows"]] == [0] * len(stage["rows"])
        assert stage["max_loss_difference"] <= 1e-5
        assert stage["max_norm_difference"] <= 1e-3
        assert stage["max_parameter_difference"] <= 1e-3
    held = [
        next(row["measured"] for row in stage["rows"] if row["quantity"] == "states held")
        for stage in report["stages"]
    ]
    shares = [round(bytes_held / report["params"], 1) for bytes_held in held]
    n = processes
    assert shares == [16, round(8 + 8 / n, 1), round(4 + 12 / n, 1), round(16 / n, 1)]


def test_lab_02_notices_bytes_that_the_plan_has_not(tmp_path: Path) -> None:
    """Compare a run in fp32 with a plan for bf16, on one process."""
    lab = load(FOLDERS[1] / "lab.py", "lab_02")
    shape = {**lab.LAPTOP["model"], "layers": 1, "seq": 16}
    train = {**lab.LAPTOP["train"], "global_batch": 4}
    job = from_dict({"model": shape, "train": train})
    text = tmp_path / "text.txt"
    text.write_text("a small text, said again and again. " * 40, encoding="utf-8")
    batches = lab.Batches(
        lab.Corpus([text], vocab=job.model.vocab), seq=job.model.seq, global_batch=4, seed=job.train.seed
    )
    group = lab.Group.alone()
    result = lab.train(job, group, batches, device=torch.device("cpu"))
    right = lab.compare(job, result, result, group)
    assert right["ranks_off_plan"] == []
    wrong = lab.compare(replace(job, {"train.precision": "bf16"}), result, result, group)
    assert wrong["ranks_off_plan"] == [0]


def test_lab_02_fails_when_a_rank_fails() -> None:
    """The documented way to log keeps torchrun's exit status."""
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    line = " ".join(
        [
            *map(shlex.quote, torchrun),
            "--standalone --nproc-per-node 2 labs/02_zero/lab.py --data missing.txt",
        ]
    )
    done = run(["bash", "-c", f"set -o pipefail; {line} 2>&1 | tee /dev/null"])
    assert done.returncode != 0
    assert "there is no such file" in done.stdout


WITH_PRESETS = [
    folder for folder in FOLDERS if "LabParser(" in (folder / "lab.py").read_text(encoding="utf-8")
]


def test_every_lab_with_presets_has_the_common_command_line() -> None:
    found = [
        folder
        for folder in FOLDERS
        if hasattr(load(folder / "lab.py", f"presets_of_{folder.name}"), "PRESETS")
    ]
    assert found == WITH_PRESETS


@pytest.mark.parametrize("folder", WITH_PRESETS, ids=lambda folder: folder.name)
def test_a_preset_that_needs_a_gpu_says_so(folder: Path) -> None:
    done = run([sys.executable, str(folder / "lab.py"), "--preset", "gpu"], env={"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 2
    assert "needs a GPU" in done.stderr
