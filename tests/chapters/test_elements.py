"""What chapters are built of: predictions, tables, diagrams."""

import json
import re
from html import unescape
from pathlib import Path

import pytest

from pdtlib.book import diagrams, model_diagram, split_diagrams
from pdtlib.book.tables import Table
from pdtlib.exercises import catalog
from pdtlib.explore.prediction import MIME, prediction, readable, static_html
from pdtlib.plan import params, presets
from pdtlib.plan.sharding import shard_range

ASKED = {"value": 385.0, "unit": "GB", "explanation": "Because."}


def test_a_prediction_carries_its_computed_value() -> None:
    made = prediction("zero1", "How many?", **ASKED, slips={"only the shard": 105.0})
    bundle = made._repr_mimebundle_()
    assert bundle[MIME]["value"] == 385.0
    assert bundle[MIME]["slips"] == [{"text": "only the shard", "value": 105.0}]
    assert "385" not in bundle["text/plain"], "the answer must not stand beside the question"


def test_a_prediction_works_without_script() -> None:
    markup = static_html(prediction("zero1", "How <many>?", **ASKED).payload)
    assert "How &lt;many&gt;?" in markup
    assert "<details" in markup
    assert "385 GB" in re.sub(r"<[^>]+>", "", markup)
    data = json.loads(unescape(re.search(r'data-prediction="([^"]*)"', markup).group(1)))
    assert data["value"] == 385.0
    label, field = re.search(r'for="([^"]+)"', markup), re.search(r'<input id="([^"]+)"', markup)
    assert label.group(1) == field.group(1)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"value": 0.0}, "value"),
        ({"value": float("nan")}, "value"),
        ({"tolerance": 0.0}, "tolerance"),
        ({"tolerance": 0.9}, "tolerance"),
        ({"slips": {"nearly right": 386.0}}, "nearly right"),
    ],
)
def test_a_prediction_that_cannot_be_graded_is_refused(change: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        prediction("zero1", "How many?", **{**ASKED, **change})


@pytest.mark.parametrize(
    ("value", "text"),
    [(1120, "1,120"), (14, "14"), (16.91, "16.91"), (0.0625, "0.0625"), (4.2e23, "4.2 × 10^23")],
)
def test_numbers_read_well(value: float, text: str) -> None:
    assert readable(value) == text


def test_a_table_has_a_header_for_every_row_and_column() -> None:
    table = Table("What it shows", ("name", "a <b>"), [("first", 1), ("second", "2,000")])
    markup = table._repr_html_()
    assert markup.count('scope="col"') == 2
    assert markup.count('scope="row"') == 2
    assert "a &lt;b&gt;" in markup
    assert repr(table).splitlines() == ["What it shows", "name    a <b>", "first       1", "second  2,000"]


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="2 values"):
        Table("x", ("a", "b"), [(1, 2, 3)])


def test_replicas_get_every_sample_once() -> None:
    sentence = diagrams.replicas(ranks=4, batch=128).sentence
    cut = [(int(a), int(b) + 1) for a, b in re.findall(r"samples (\d+) to (\d+)", sentence)]
    assert cut == [shard_range(128, 4, rank) for rank in range(4)]


@pytest.mark.parametrize(
    "drawing",
    [
        diagrams.step_lifetimes(),
        diagrams.ownership(ranks=4),
        diagrams.ownership(ranks=2),
        split_diagrams.paired_cuts(ranks=2),
        split_diagrams.zigzag(ranks=4),
        model_diagram.layer(presets.model("llama2-70b")),
    ],
    ids=["lifetimes", "ownership of 4", "ownership of 2", "paired cuts", "zigzag", "layer"],
)
def test_drawings_stay_inside_and_say_what_they_show(drawing: diagrams.Drawing) -> None:
    width, height = map(float, re.search(r'viewBox="0 0 (\d+) (\d+)"', drawing.markup).groups())
    for x, y, wide, tall in re.findall(
        r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', drawing.markup
    ):
        assert float(x) + float(wide) <= width
        assert float(y) + float(tall) <= height
    assert 'role="img"' in drawing.markup
    assert len(drawing.sentence) > 80


def test_ownership_draws_each_stage_s_share() -> None:
    """DP draws three whole bars a rank; each stage more turns one kind into a quarter."""
    drawn = diagrams.ownership(ranks=4).markup
    heights = [float(h) for h in re.findall(r'height="([\d.]+)" rx="2" fill="#\w+" fill-opacity="1"', drawn)]
    whole = max(heights)
    assert sum(height == whole for height in heights) == 4 * (3 + 2 + 1 + 0)
    assert sum(height == pytest.approx(whole / 4) for height in heights) == 4 * (0 + 1 + 2 + 3)


@pytest.mark.parametrize("name", ["gpt2-xl", "llama2-70b"])
def test_a_layer_s_matrices_are_those_of_the_plan(name: str) -> None:
    model = presets.model(name)
    drawn = model_diagram.layer(model).sentence
    found = re.findall(r"\(([\d,]+) → ([\d,]+(?: \+ [\d,]+)*)\)", drawn)
    numbers = [(int(into.replace(",", "")), out.replace(",", "").split(" + ")) for into, out in found]
    matrices = [spec for spec in params.tensors(model) if spec.layer == 0 and len(spec.shape) == 2]
    assert sum(into * int(part) for into, out in numbers for part in out) == sum(
        spec.numel for spec in matrices
    )


def test_chapters_show_every_exercise_in_the_catalogue_s_order() -> None:
    shown = []
    for path in sorted((Path(__file__).parents[2] / "chapters").glob("[01]*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        code = ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
        shown += [id for source in code for id in re.findall(r'exercises\.show\("([^"]+)"', source)]
    assert shown == list(catalog.ids())


def test_zigzag_gives_every_rank_the_same_work() -> None:
    sentence = split_diagrams.zigzag(ranks=4).sentence
    shares = [int(share) for share in re.findall(r"(\d+) %", sentence)]
    assert shares[:4] == [round(100 * (4 * rank + 2) / 32) for rank in range(4)]
    assert shares[4:] == [25] * 4
