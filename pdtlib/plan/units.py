"""Units: the only place that scales or formats a quantity. Everything else is in bytes, seconds, FLOPs.

GB are 1e9 bytes, as papers and data sheets print them; GiB are 2**30 bytes, as ``nvidia-smi`` shows them.
"""

KB, MB, GB, TB = 1e3, 1e6, 1e9, 1e12
KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
TFLOP, PFLOP = 1e12, 1e15
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400

_DECIMAL = ((TB, "TB"), (GB, "GB"), (MB, "MB"), (KB, "kB"), (1, "B"))
_BINARY = ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"), (1, "B"))
_COUNTS = ((1e12, " T"), (1e9, " B"), (1e6, " M"), (1e3, " k"), (1, ""))
_TIMES = (
    (365.25 * DAY_S, "years"),
    (DAY_S, "days"),
    (HOUR_S, "h"),
    (MINUTE_S, "min"),
    (1, "s"),
    (1e-3, "ms"),
)
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def _digits(number: float, digits: int | None) -> str:
    """Three significant digits, or so many decimals without trailing zeros."""
    if digits is not None:
        text = f"{number:,.{digits}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    size = abs(number)
    return f"{number:,.{0 if size >= 99.95 else 1 if size >= 9.995 else 2}f}"


def _scaled(value: float, scales: tuple[tuple[float, str], ...], digits: int | None) -> tuple[str, str]:
    scale, unit = next((pair for pair in scales if abs(value) >= pair[0]), scales[-1])
    if scale == 1 and float(value).is_integer():
        return f"{value:,.0f}", unit
    return _digits(value / scale, digits), unit


def bytes_text(value: float, *, binary: bool = False, digits: int | None = None) -> str:
    """Bytes for readers.

    >>> bytes_text(1.12e12), bytes_text(2**30, binary=True), bytes_text(140e9)
    ('1.12 TB', '1.00 GiB', '140 GB')
    """
    number, unit = _scaled(value, _BINARY if binary else _DECIMAL, digits)
    return f"{number} {unit}"


def gb_text(value: float, *, digits: int | None = None) -> str:
    """Bytes in GB, whatever their size, so that a column of them can be compared.

    >>> gb_text(1.12e12), gb_text(16.640625e9)
    ('1,120 GB', '16.6 GB')
    """
    return f"{_digits(value / GB, digits)} GB"


def count_text(value: float, *, digits: int | None = None) -> str:
    """A count of parameters or tokens.

    >>> count_text(70553706496), count_text(1e12)
    ('70.6 B', '1.00 T')
    """
    number, unit = _scaled(value, _COUNTS, digits)
    return f"{number}{unit}"


def time_text(value: float, *, digits: int | None = None) -> str:
    """Seconds for readers.

    >>> time_text(0.0075), time_text(36200 * DAY_S)
    ('7.50 ms', '99.1 years')
    """
    number, unit = _scaled(value, _TIMES, digits)
    return f"{number} {unit}"


def flops_text(value: float) -> str:
    """A number of FLOPs in the field's notation.

    >>> flops_text(4.2e23)
    '4.2e23'
    """
    mantissa, _, exponent = f"{value:.3g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa


def rate_text(value: float, unit: str) -> str:
    """So many of ``unit`` (B, FLOP) a second.

    >>> rate_text(2.5e10, "FLOP"), rate_text(3e6, "B")
    ('25.0 GFLOP/s', '3.00 MB/s')
    """
    scale, prefix = next((pair for pair in _PREFIXES if abs(value) >= pair[0]), (1.0, ""))
    return f"{_digits(value / scale, None)} {prefix}{unit}/s"


def percent_text(value: float, *, digits: int = 1) -> str:
    """A share of one as a percentage.

    >>> percent_text(0.6917)
    '69.2 %'
    """
    return f"{value * 100:.{digits}f} %"


def column_unit(largest: float) -> tuple[float, str]:
    """The unit in which a column of byte counts is printed, chosen by the largest of them: (bytes, name).

    >>> column_unit(62.9e9)
    (1000000000.0, 'GB')
    """
    return next(((scale, unit) for scale, unit in _DECIMAL if largest >= scale), (1, "B"))
