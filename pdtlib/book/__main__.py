"""``python -m pdtlib.book 02``: run a lab, see :mod:`pdtlib.book.lab`."""

import sys

from pdtlib.book.lab import main

sys.exit(main(sys.argv[1:]))
