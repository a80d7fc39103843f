"""Numbers as readers see them."""

import pytest

from pdtlib.plan import units


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.bytes_text(0), "0 B"),
        (units.bytes_text(999), "999 B"),
        (units.bytes_text(1500), "1.50 kB"),
        (units.bytes_text(485 * 2**30, binary=True), "485 GiB"),
        (units.bytes_text(60.625 * 2**30, binary=True), "60.6 GiB"),
        (units.gb_text(1.12e12), "1,120 GB"),
        (units.gb_text(1.034e9), "1.03 GB"),
        (units.gb_text(262.5e9, digits=1), "262.5 GB"),
        (units.gb_text(385e9), "385 GB"),
        (units.gb_text(0.1171875e9, digits=2), "0.12 GB"),
        (units.count_text(124439808), "124 M"),
        (units.count_text(12), "12"),
        (units.time_text(0.0156), "15.6 ms"),
        (units.time_text(90), "1.50 min"),
        (units.time_text(15580 * 86400), "42.7 years"),
        (units.flops_text(4.2e23), "4.2e23"),
        (units.flops_text(980), "980"),
        (units.percent_text(0.692), "69.2 %"),
    ],
)
def test_texts(text, expected):
    assert text == expected
