"""The bug museum: small programs with the faults of large ones, and the test that finds each."""

from pdtlib.book.museum.catalog import EXHIBITS
from pdtlib.book.museum.exhibit import Exhibit, differences, shown

__all__ = ["EXHIBITS", "Exhibit", "differences", "shown"]
