"""Bytes of the tensors that live while the reader's code runs, and their peak."""

import time
from collections.abc import Iterable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

POLL_S = 0.002
PATIENCE_S = 3.0
SHORT_PATIENCE_S = 0.02


class LiveBytes(TorchDispatchMode):
    """Counts storages made by torch operations inside, each once, as long as they live.

    Storages of ``known`` tensors do not count. ``peak`` is the largest sum after any operation since the last
    :meth:`restart_peak`.
    """

    def __init__(self, known: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self._known: dict[int, torch.UntypedStorage] = {}
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self._patience_s = PATIENCE_S
        self.peak = 0
        self.ignore(known)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, and keeping dynamo out of it would import it: seconds a process."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                if storage._cdata not in self._known:
                    self._storages[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.peak = max(self.peak, self.live())
        return result

    def ignore(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count these tensors' storages no longer. Kept alive, so that no other takes their place."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self._known[storage._cdata] = storage
            self._storages.pop(storage._cdata, None)

    def live(self) -> int:
        """Bytes alive now."""
        self._storages = {key: item for key, item in self._storages.items() if not item[0].expired()}
        return sum(size for _, size in self._storages.values())

    def settled(self, *, at_most: int) -> int:
        """:meth:`live`, once it is ``at_most``, or after some patience.

        Gloo's threads hold the tensors of a finished call a little longer, on a busy machine much longer.
        Where waiting has not helped once it will hardly help again, so the next waits are short.
        """
        deadline = time.monotonic() + self._patience_s
        while self.live() > at_most and time.monotonic() < deadline:
            time.sleep(POLL_S)
        live = self.live()
        if live > at_most:
            self._patience_s = SHORT_PATIENCE_S
        return live

    def restart_peak(self) -> None:
        self.peak = self.live()
