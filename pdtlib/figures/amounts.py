"""How figures and explorers word an amount: one decimal, no trailing zeros.

Units are those of :mod:`pdtlib.plan.units`. Tables of the command line keep three significant digits; a
chart's labels and a sentence read better so.
"""

from __future__ import annotations

from pdtlib.plan import units

DECIMALS = 1


def gb_words(value: float) -> str:
    """Bytes in GB.

    >>> gb_words(262.5e9), gb_words(80e9)
    ('262.5 GB', '80 GB')
    """
    return units.gb_text(value, digits=DECIMALS)


def bytes_words(value: float, *, binary: bool = False) -> str:
    """Bytes in the unit that suits them.

    >>> bytes_words(25 * 2**20, binary=True), bytes_words(1.75e9)
    ('25 MiB', '1.8 GB')
    """
    return units.bytes_text(value, binary=binary, digits=DECIMALS)


def count_words(value: float) -> str:
    """A count of parameters or tokens.

    >>> count_words(70e9), count_words(8030261248)
    ('70 B', '8 B')
    """
    return units.count_text(value, digits=DECIMALS)


def time_words(value: float) -> str:
    """A time.

    >>> time_words(0.0114), time_words(1.46e6)
    ('11.4 ms', '16.9 days')
    """
    return units.time_text(value, digits=DECIMALS)
