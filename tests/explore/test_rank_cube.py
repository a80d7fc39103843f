"""Explorer rank-cube: the article's 1,024 GPUs, both orders, what crosses which link, and a click."""

import pytest

from pdtlib.explore import catalog
from pdtlib.explore.controls import ControlError
from pdtlib.explore.live import Live
from pdtlib.figures import ranks as drawing
from pdtlib.figures.theme import PICK
from pdtlib.plan import presets

CUBE = catalog.get("rank-cube")


def view(**state):
    return CUBE.view_of(state)


def rows(**state):
    return {row[0]: row[1:] for row in view(**state).table.rows}


def test_rank_0_of_16_8_8():
    found = rows()
    assert found["TP"][1] == ", ".join(map(str, range(8)))
    assert found["PP"][1] == ", ".join(map(str, range(0, 57, 8)))
    assert found["DP"][1] == ", ".join(map(str, range(0, 961, 64)))
    assert [found[axis][2] for axis in ("DP", "TP", "PP")] == ["64", "128", "128"]
    assert [found[axis][3] for axis in ("TP", "PP", "DP")] == ["1", "8", "16"]


def test_megatrons_order_puts_replicas_side_by_side():
    found = rows(order="megatron")
    assert found["TP"][1] == ", ".join(map(str, range(8)))
    assert found["DP"][1] == ", ".join(map(str, range(0, 121, 8)))
    assert found["PP"][1] == ", ".join(map(str, range(0, 897, 128)))


def test_bytes_of_gpt3_on_an_inner_stage():
    """Register C5.2-d: TP 406 GB in 4,608 all-reduces, PP 9.7 GB in 192 sends, 1.2 GB with scatter/gather."""
    inner = rows(rank=24)  # stage 3
    assert inner["TP"][5] == "405.9 GB"
    assert inner["PP"][5] == "9.7 GB"
    assert inner["DP"][5] == "10.2 GB"
    assert inner["TP"][6:] == ("NVLink", "1.4 s")
    assert rows(rank=24, sp=True)["PP"][5] == "1.2 GB"


def test_tensor_parallelism_over_nodes_is_slow():
    shown = view(rank=24, per_node=4)
    assert {row[0]: row[4] for row in shown.table.rows}["TP"] == "2"
    rate = presets.LINKS["ib-hdr-200"]
    numbers = {readout.name: readout.value for readout in shown.readouts}
    assert numbers["inside"] == 0
    assert numbers["across"] / rate == pytest.approx(16.2 + 0.41 + 0.39, abs=0.1)
    assert "16.2 s over the network; inside a node they would take 1.4 s" in shown.notes[0]


def test_the_map_shows_everybodys_role():
    heat = view().figure["data"][0]
    roles = list(drawing.COLORS)
    flat = [roles[code] for row in heat["z"] for code in row]
    ranks = [rank for row in heat["customdata"] for rank in row]
    assert ranks == list(range(1024))
    assert flat.count("self") == 1
    assert (flat.count("tp"), flat.count("pp"), flat.count("dp")) == (7, 7, 15)
    assert flat.count("replica") == 64 - 8 - 7
    assert [rank for rank, role in zip(ranks, flat, strict=True) if role == "pp"] == list(range(8, 57, 8))


@pytest.mark.parametrize(
    ("state", "field", "words"),
    [
        ({"dp": 64, "tp": 16, "pp": 8}, "dp", "8,192 GPUs are more than"),
        ({"dp": 1, "rank": 64}, "rank", "no rank 64; ranks are 0 to 63"),
        ({"rank": "x"}, "rank", "not a number"),
        ({"model": "qwen2.5-14b", "tp": 16}, "tp", "heads"),
    ],
)
def test_what_cannot_be_is_told_beside_the_control(state, field, words):
    with pytest.raises(ControlError, match=words) as caught:
        view(**state)
    assert caught.value.field == field


def test_a_click_in_the_notebook_chooses_the_rank():
    widget = Live(CUBE, CUBE.state())
    heat = widget.figure.data[0]

    class Points:
        point_inds = ((2, 9),)  # row and column of the map

    assert CUBE.view_of().figure["layout"]["meta"][PICK] == "rank"
    widget._picked("rank", heat, Points())
    assert widget.state()["rank"] == str(2 * 64 + 9)
    assert "Rank 137 lies on node 17" in widget.summary.value


def test_the_job_comes_back():
    state = CUBE.state({"model": "llama3-70b", "dp": 4, "pp": 4, "micro_batches": 8, "sp": True})
    job = CUBE.view_of(state).job
    assert CUBE.view_of(CUBE.adopt(job)).job == job
