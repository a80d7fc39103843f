"""On PYTHONPATH, lets one rank of a run fail: PDT_FAULT is ``rank:step:raise`` or ``rank:step:kill``.

Python imports this module at start. It wraps the call with which every step begins, so the fault comes in the
middle of a real run, with the other ranks waiting in a collective.
"""

import os

if "RANK" in os.environ and "PDT_FAULT" in os.environ:
    rank, step, kind = os.environ["PDT_FAULT"].split(":")
    if os.environ["RANK"] == rank:
        from pdtlib.engine.data import Batches

        take = Batches.take

        def faulty(self, at, **options):
            if at == int(step):
                if kind == "kill":
                    os.kill(os.getpid(), 9)
                raise RuntimeError("boom")
            return take(self, at, **options)

        Batches.take = faulty
