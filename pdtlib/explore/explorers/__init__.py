"""The explorers, one module each; :mod:`pdtlib.explore.catalog` finds them by id."""
