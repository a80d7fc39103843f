"""The command line, ``pdt``: one module a command group, heavy imports inside the commands."""

from pdtlib.cli.app import main

__all__ = ["main"]
