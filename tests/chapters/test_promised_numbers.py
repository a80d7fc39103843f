"""The numbers that a chapter has to show stand in it, computed: in its stored results, and in its prose.

nbval compares stored results with fresh ones, so what stands here is what the library computes. The values
below are the papers' and those that were worked out by hand before the chapters were written.
"""

import json
import re
from functools import cache
from pathlib import Path

import pytest

CHAPTERS = Path(__file__).parents[2] / "chapters"

IN_PROSE = {
    "01": {
        "c1_total_12": "840",
        "c1_total_16": "1,120",
        "c1_act_bare": "485",
        "c1_act_sp": "60.6",
        "c1_act_sel": "10.6",
        "c1_act_full": "5.0",
        "c1_flops": "4.2e23",
        "c1_days_one": "15,580",
        "c1_mfu_needed": "69.2 %",
    },
    "02": {
        **{f"c2_70_{stage}": gb for stage, gb in enumerate(("1,120", "385", "262.5", "140"))},
        **{f"c2_sent_{stage}": gb for stage, gb in enumerate(("245", "245", "245", "367.5"))},
        "c2_fits_16": "14",
    },
    "03": {"c3_message": "67.1", "c3_sent": "37.6", "c3_near": "10.4 %", "c3_far": "52.2 %"},
    "04": {
        "c4_in_flight": "4, 3, 2, 1",
        "c4_article": "32",
        "c4_1f1b": "20",
        "c4_rates": "12",
        "c4_sum_peak": "5.5",
    },
    "05": {"c5_dp_groups": "64", "c5_tp_groups": "128", "c5_pp_groups": "128"},
    "06": {
        "c6_gpt3_tp": "51.8",
        "c6_gpt3_sp": "32.1",
        "c6_tp_gb": "7.52",
        "c6_ulysses_gb": "0.53",
        "c6_ring_gb": "0.47",
    },
    "07": {"c7_none": "800", "c7_one": "450", "c7_zero1": "15.3, 15.0, 22.8", "c7_bubble": "27.3 %"},
    "08": {"c8_bound": "39.1 %", "c8_needed_excellent": "71 %", "c8_best": "86.9 %"},
    "09": {
        "c9_sum_mtbf": "3.09",
        "c9_2048_min": "38.5 min",
        "c9_2048_cost": "2.6 %",
        "c9_checkpoint": "980 GB",
    },
}
"""Chapter → the name that its text shows → what it must be."""

IN_TABLES = {
    "01": ("12 +840 GB", "16 +1,120 GB", "18 +1,260 GB", "20 +1,400 GB"),
    "02": (
        "plain data parallelism +120 +1,120 .*never",
        "ZeRO-1 +31.4 +385 .*never",
        "ZeRO-2 +16.6 +262.5 .*never",
        "ZeRO-3 +1.9 +140 .*N ≥ 14",
    ),
    "03": ("8 +1.38 s +0.16 s +10.4 % +1.50 s +52.2 %",),
    "04": (
        *(
            f"{m} +{share} +{share} +{share}"
            for m, share in {
                1: "75.0 %",
                2: "60.0 %",
                4: "42.9 %",
                8: "27.3 %",
                16: "15.8 %",
                32: "8.6 %",
            }.items()
        ),
        "2 +28.5 +15.8 % +5.5 +7",
        "1.5B, 8, 24 +0.2431 +0.2431 +0.1585 +0.1585",
        "1.5B, 8, 32 +0.1985 +0.1985 +0.1242 +0.1242",
        "1.5B, 8, 64 +0.1240 +0.1240 +0.0674 +0.0674",
        "14.6B, 16, 48 +0.2552 +0.2552 +0.1397 +0.1397",
        "14.6B, 16, 64 +0.2082 +0.2082 +0.1088 +0.1088",
        "14.6B, 16, 128 +0.1251 +0.1251 +0.0576 +0.0576",
    ),
    "05": (
        "tensor parallel +0–7 +8 +128",
        "pipeline +0, 8, …, 56 +8 +128",
        "data parallel +0, 64, …, 960 +16 +64",
    ),
    "06": (
        "tensor parallelism +7.52",
        "with sequence parallelism +7.52",
        "Ulysses +0.53 +0.53 +0.94",
        "ring attention +0.47 +0.94 +3.76",
    ),
    "07": (
        "70B on 128 GPUs +8, 4, 4 +3 +20 +8.75 +15.3",
        "530B on 1,024 GPUs +8, 16, 8 +3 +6.5625 +8.28 +22.8",
        *(f"{size} on {gpus} GPUs +nobody" for size, gpus in (("7B", 8), ("13B", 16))),
        *(
            f"{size} on {gpus} GPUs +DeepSpeed, Megatron-LM"
            for size, gpus in (("70B", "128"), ("175B", "512"), ("530B", "1,024"))
        ),
        "· allgather_bucket_size +no effect",
        "· cpu_offload +old name",
        "· size +refused",
        *(f"{key} +passed over" for key in ("pipeline_parallel", "pipeline_type", "num_chunks")),
    ),
    "08": ("4 +27 +12", "8 +63 +28", "16 +135 +60", "GPT 530B +A100 +2,048 +56.0 % +57.0 %"),
    "09": (
        *(
            f"{delay} +{step} +{step}"
            for delay, step in {0: "2.000", 1: "1.000", 3: "0.445", 7: "0.209", 15: "0.101"}.items()
        ),
        "16,384 +3.09 h",
        "2,048 +38.5 min +2.6 %",
        "16,384 +13.6 min +7.3 %",
        "asynchronous +8 +7.0 +7.25 +7.0",
        "synchronous +8 +0.0 +2 +0.0",
    ),
    "10": ("data parallelism +the batch +1,104", "pipeline +130 +9 +0.3 +0 % +anywhere"),
}
"""Chapter → lines of its tables, with any number of blanks between columns."""


@cache
def _cells(chapter: str) -> list[dict[str, object]]:
    (path,) = CHAPTERS.glob(f"{chapter}_*.ipynb")
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def _outputs(chapter: str) -> list[dict[str, object]]:
    return [output for cell in _cells(chapter) for output in cell.get("outputs", [])]


def _named(chapter: str) -> dict[str, str]:
    return {
        output["metadata"]["scrapbook"]["name"]: "".join(*output["data"].values()).strip("'")
        for output in _outputs(chapter)
        if "scrapbook" in output.get("metadata", {})
    }


@pytest.mark.parametrize(
    ("chapter", "name", "value"),
    [(chapter, name, value) for chapter, names in IN_PROSE.items() for name, value in names.items()],
)
def test_the_text_shows_it(chapter: str, name: str, value: str) -> None:
    assert _named(chapter)[name] == value
    prose = "".join("".join(cell["source"]) for cell in _cells(chapter) if cell["cell_type"] == "markdown")
    assert f"{{glue:text}}`{name}`" in prose


@pytest.mark.parametrize(
    ("chapter", "line"), [(chapter, line) for chapter, lines in IN_TABLES.items() for line in lines]
)
def test_a_table_shows_it(chapter: str, line: str) -> None:
    printed = "\n".join("".join(output.get("data", {}).get("text/plain", "")) for output in _outputs(chapter))
    assert re.search(line, printed)


@pytest.mark.parametrize("path", sorted(CHAPTERS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_every_number_that_is_named_is_shown(path: Path) -> None:
    """A name that no text shows is left over from an earlier text, and may hide that a number was typed."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    prose = "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    named = {
        output["metadata"]["scrapbook"]["name"]
        for cell in cells
        for output in cell.get("outputs", [])
        if "scrapbook" in output.get("metadata", {})
    }
    assert sorted(name for name in named if f"{{glue:text}}`{name}`" not in prose) == []
