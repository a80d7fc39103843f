"""What may accompany a run, step by step: a watchdog, copies in memory, a log of samples, injected faults."""

from pdtlib.engine.mesh import Mesh
from pdtlib.engine.optimizer import ShardedAdamW
from pdtlib.engine.parallelize import Parallelized
from pdtlib.engine.training.pieces import Place


class Companion:
    """Does nothing. Every method is called by all ranks at the same point of the loop."""

    def join(self, mesh: Mesh, *, on_disk: int) -> int:
        """The group has formed. Returns the step to go on from: that of the newest checkpoint on disk, or a
        later one whose state :meth:`load` can give."""
        return on_disk

    def load(self, optimizer: ShardedAdamW, *, place: Place) -> None:
        """Fill the state of the later step that :meth:`join` has named."""
        raise NotImplementedError

    def begin(self, parts: Parallelized, optimizer: ShardedAdamW, *, place: Place, first: int) -> None:
        """The state is loaded; step ``first`` comes next."""

    def before_step(self, step: int) -> None:
        """A step begins."""

    def before_update(self, step: int) -> None:
        """The step's gradients are complete; the optimizer has not used them yet."""

    def after_step(self, step: int) -> None:
        """The step is done."""

    def must_end(self, step: int) -> bool:
        """Is the run to save and end after ``step``, though it is not complete? All ranks answer alike."""
        return False

    def end(self) -> None:
        """The run is over, its last checkpoint is complete."""
