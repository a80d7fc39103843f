"""The batch files for clusters: clean, and run here on stand-ins for Slurm's own commands.

``scontrol`` and ``srun`` are replaced by scripts that do what Slurm does for two nodes, both on this machine:
name the hosts, and start the command once a node with its number. torchrun, the rendezvous between its two
agents, the labs and exit statuses are real.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from lab_running import ROOT, run

from pdtlib import exercises

CLUSTER = ROOT / "labs" / "cluster"
BATCH_FILES = sorted(CLUSTER.glob("*.sbatch"))

SCONTROL = """#!/usr/bin/env bash
[[ "$1 $2 $3" == "show hostnames node[0-1]" ]] || exit 9
printf 'localhost\\nlocalhost\\n'
"""
SRUN = """#!/usr/bin/env bash
# Start the command on both "nodes"; fail if one fails, as --kill-on-bad-exit asks.
[[ "$1" == "--kill-on-bad-exit=1" ]] || exit 9
shift
SLURM_NODEID=0 "$@" & first=$!
SLURM_NODEID=1 "$@" & second=$!
status=0
wait "$first" || status=$?
wait "$second" || status=$?
exit "$status"
"""


PDT = str(Path(sys.executable).parent / "pdt")
PATH = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


@pytest.fixture
def slurm(tmp_path: Path) -> dict[str, str]:
    """An environment with the stand-ins first on the path and Slurm's variables for two nodes of one GPU."""
    for name, text in {"scontrol": SCONTROL, "srun": SRUN}.items():
        script = tmp_path / name
        script.write_text(text, encoding="utf-8")
        script.chmod(0o755)
    environment = Path(sys.executable).parent
    return {
        "PATH": f"{tmp_path}:{environment}:{os.environ['PATH']}",
        "PDT_ENV": str(environment.parent),
        "PDT_LOGS": str(tmp_path),
        "SLURM_SUBMIT_DIR": str(ROOT),
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_NODELIST": "node[0-1]",
        "SLURM_GPUS_ON_NODE": "1",
    }


def test_there_are_batch_files() -> None:
    assert [path.name for path in BATCH_FILES] == ["grade.sbatch", "lab.sbatch", "train.sbatch"]


@pytest.mark.parametrize("path", BATCH_FILES, ids=lambda path: path.name)
def test_shellcheck_finds_nothing(path: Path) -> None:
    checker = Path(sys.executable).parent / "shellcheck"
    done = subprocess.run([str(checker), str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", BATCH_FILES, ids=lambda path: path.name)
def test_batch_files_say_what_slurm_must_know(path: Path) -> None:
    options = dict(re.findall(r"^#SBATCH --([a-z-]+)(?:=(.+))?$", path.read_text(encoding="utf-8"), re.M))
    assert {"nodes", "time", "output"} <= set(options)
    if path.name == "grade.sbatch":
        assert options["ntasks"] == options["nodes"] == "1"
    else:
        assert options["ntasks-per-node"] == "1"
        assert "gpus-per-node" in options


def test_submissions_are_graded_by_an_array(tmp_path: Path) -> None:
    """Two tasks of a job array share three submissions, with the same hidden sizes; one table comes of it."""
    assignment = tmp_path / "assignment"
    assert run([PDT, "assign", "make", "ch01-param-count", "--out", str(assignment)]).returncode == 0
    for name in ("ada", "bob", "cy"):
        (tmp_path / "submissions" / name).mkdir(parents=True)
    solution = exercises.get("ch01-param-count").solution
    (tmp_path / "submissions/ada/ch01_param_count.py").write_text(solution, encoding="utf-8")
    folders = [str(tmp_path / name) for name in ("assignment", "submissions", "results")]
    for task in ("3", "4"):
        array = {
            "SLURM_ARRAY_JOB_ID": "77",
            "SLURM_ARRAY_TASK_ID": task,
            "SLURM_ARRAY_TASK_MIN": "3",
            "SLURM_ARRAY_TASK_COUNT": "2",
        }
        environment = {"SLURM_SUBMIT_DIR": str(ROOT), "SLURM_JOB_ID": "8" + task, **array, **PATH}
        done = run(["bash", str(CLUSTER / "grade.sbatch"), *folders], env=environment)
        assert done.returncode == 0, done.stderr
    found = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "results").glob("*.json")}
    assert {name: each["score"] for name, each in found.items()} == {"ada": 1.0, "bob": 0.0, "cy": 0.0}
    assert {each["seed"] for each in found.values()} == {77}
    table = run([PDT, "assign", "collect", folders[2]]).stdout
    assert [line.split(",")[:2] for line in table.splitlines()[1:]] == [
        ["ada", "1"],
        ["bob", "0"],
        ["cy", "0"],
    ]


def test_a_lab_runs_on_two_nodes(slurm: dict[str, str]) -> None:
    done = run(
        ["bash", str(CLUSTER / "lab.sbatch"), "02", "--preset", "laptop", "--stages", "0", "3"], env=slurm
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 processes on cpu" in done.stdout
    assert "every byte as planned, every loss equal" in done.stdout
    log = Path(slurm["PDT_LOGS"]) / f"lab-02-{slurm['SLURM_JOB_ID']}.out"
    assert log.read_text(encoding="utf-8") == done.stdout


def test_a_lab_that_fails_fails_the_batch_job(slurm: dict[str, str]) -> None:
    done = run(
        ["bash", str(CLUSTER / "lab.sbatch"), "02", "--data", "missing.txt", "--preset", "laptop"], env=slurm
    )
    assert done.returncode != 0
    assert "there is no such file" in done.stdout


def test_an_unknown_lab_is_refused(slurm: dict[str, str]) -> None:
    done = run(["bash", str(CLUSTER / "lab.sbatch"), "77"], env=slurm)
    assert done.returncode == 2
    assert "no lab 77" in done.stderr
    assert "02_zero" in done.stderr


JOB = """
[model]
layers = 2
hidden = 32
heads = 2
vocab = 256
seq = 32
[train]
micro_batch = 1
precision = "fp32"
zero_stage = 3
[parallel]
dp = 2
"""


def test_a_training_runs_on_two_nodes(slurm: dict[str, str], tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(JOB, encoding="utf-8")
    out = tmp_path / "run"
    done = run(["bash", str(CLUSTER / "train.sbatch"), str(job), str(out), "--steps", "2"], env=slurm)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len((out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()) == 2


def test_a_job_that_cannot_work_is_refused_before_the_nodes_start(
    slurm: dict[str, str], tmp_path: Path
) -> None:
    job = tmp_path / "job.toml"
    job.write_text(JOB.replace("heads = 2", "heads = 5"), encoding="utf-8")
    done = run(["bash", str(CLUSTER / "train.sbatch"), str(job), str(tmp_path / "run")], env=slurm)
    assert done.returncode == 2
    assert "heads" in done.stderr
    assert not (tmp_path / "run").exists()


def kubernetes_job() -> dict[str, Any]:
    return yaml.safe_load((CLUSTER / "pytorchjob.yaml").read_text(encoding="utf-8"))


def faults_of(job: dict[str, Any]) -> list[str]:
    """What the published schema says against a training job; kubernetes/derive.py says where it is from."""
    schema = json.loads((Path(__file__).parent / "kubernetes" / "pytorchjob.schema.json").read_text("utf-8"))
    return [error.message for error in jsonschema.Draft7Validator(schema).iter_errors(job)]


def test_the_kubernetes_job_fits_the_published_schema() -> None:
    assert faults_of(kubernetes_job()) == []


def test_the_schema_finds_what_kubernetes_would_refuse() -> None:
    job = kubernetes_job()
    del job["spec"]["runPolicy"]
    job["spec"]["nprocPerNode"] = 8
    pod = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    pod["container"] = pod.pop("containers")
    pod["volumes"][0]["emptyDir"]["medum"] = pod["volumes"][0]["emptyDir"].pop("medium")
    found = "\n".join(faults_of(job))
    for fault in ("'runPolicy' is a required", "8 is not of type 'string'", "'container' was", "'medum' was"):
        assert fault in found


def test_the_kubernetes_job_runs_a_lab_that_exists() -> None:
    spec = kubernetes_job()["spec"]
    replicas = spec["pytorchReplicaSpecs"]
    assert set(replicas) == {"Master", "Worker"}
    for replica in replicas.values():
        (container,) = replica["template"]["spec"]["containers"]
        assert container["name"] == "pytorch"
        assert (ROOT / container["command"][1]).exists()
        assert str(container["resources"]["limits"]["nvidia.com/gpu"]) == spec["nprocPerNode"]
