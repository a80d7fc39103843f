"""Lab 07: exact on every rank, slower orders and plans are slower, and a fault is noticed."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
import torch
from lab_running import ROOT, command, load, run

from pdtlib.engine.dist import spawn
from pdtlib.engine.mesh import build_mesh

LAB = ROOT / "labs" / "07_configurations"


@pytest.mark.parametrize("processes", [4, 2])
def test_lab_07_is_as_predicted(processes: int, tmp_path: Path) -> None:
    report_file = tmp_path / "report.json"
    done = run(command(LAB, "--unit-ms", "10", "--json", str(report_file), processes=processes))
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(report_file.read_text(encoding="utf-8"))
    assert report["world_size"] == processes
    assert report["ranks_off"] == []
    for each in (*report["passes"], *report["plans"]):
        assert all(row["right"] for row in each["rows"])
        assert each["seconds"]["measured"] > 0
    held = [{row["quantity"]: row["measured"] for row in each["rows"]} for each in report["passes"]]
    assert [rows["layers held whole at the same time"] for rows in held] == [1, 1, 2]
    predicted = [each["seconds"]["predicted"] for each in report["passes"]]
    assert predicted == pytest.approx([0.16, 0.16, 0.09])
    # A sleep is never too short, so no pass is, either.
    for each in report["passes"]:
        assert each["seconds"]["measured"] >= 0.99 * each["seconds"]["predicted"]
    best, second, last = (each["seconds"]["predicted"] for each in report["plans"])
    assert best <= second <= last
    assert report["num_plans"] > 2


def test_the_expected_output_is_of_this_lab() -> None:
    expected = (LAB / "expected.txt").read_text(encoding="utf-8")
    assert expected.rstrip().endswith("as predicted on all 4 ranks")
    module = load(LAB / "lab.py", "lab_07_names")
    for name in (*module.prefetching.ORDERS, *module.CHOSEN):
        assert f"\n{name}\n" in expected


def wrong_gathers(folder: str) -> list[str]:
    """The rows that are off on this rank when layers are gathered two ahead."""
    module: ModuleType = load(Path(folder) / "lab.py", "lab_07")
    prefetching = module.prefetching
    mesh = build_mesh({"dp": torch.distributed.get_world_size()})
    name = "the next layer ahead"

    def greedy(layers: object) -> None:
        """Gathers two layers ahead."""
        coming = [layers.gather(layer) for layer in (0, 1)]  # type: ignore[attr-defined]
        for layer in range(prefetching.LAYERS):
            weight = coming.pop(0).result()
            if layer + 2 < prefetching.LAYERS:
                coming.append(layers.gather(layer + 2))  # type: ignore[attr-defined]
            layers.compute(layer, weight)  # type: ignore[attr-defined]

    prefetching.PASSES[name] = greedy
    found = prefetching.measure(name, mesh.group("dp"), mesh.device, mesh.ledger, unit_s=0.001)
    return [row.quantity for row in found["rows"] if not row.right]


def test_lab_07_notices_a_layer_too_many_in_memory() -> None:
    for found in spawn(wrong_gathers, 2, str(LAB)):
        assert found == ["layers held whole at the same time"]
