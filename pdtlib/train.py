"""``python -m pdtlib.train JOB --out DIR``: train a job as one rank; torchrun starts as many as it needs.

torchrun --standalone --nproc-per-node 4 -m pdtlib.train job.toml --out runs/zero3
"""

import importlib.util
import os
import signal
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point: prepare the process, then run :func:`pdtlib.engine.training.loop.main`."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C is the launcher's business: end without a word
    if importlib.util.find_spec("torch") is None:
        print("error: training needs PyTorch; install it with: pip install 'pdtlib[engine]'", file=sys.stderr)
        return 2
    from pdtlib.engine.training.failures import die_with_parent, run_rank

    if "TORCHELASTIC_RUN_ID" in os.environ:
        die_with_parent()

    def work() -> None:
        from pdtlib.engine.training.loop import main
        from pdtlib.resilience.companions import accompany

        main(sys.argv[1:] if arguments is None else arguments, accompany=accompany)

    return run_rank(work)


if __name__ == "__main__":
    sys.exit(main())
