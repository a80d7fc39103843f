"""Bytes of the tensors that live while the reader's code runs, and their peak."""

import time
from collections.abc import Iterable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

SETTLE_TRIES = 10
SETTLE_S = 0.002


class LiveBytes(TorchDispatchMode):
    """Counts storages made by torch operations inside, each once, as long as they live.

    Storages of ``known`` tensors do not count. ``peak`` is the largest sum after any operation since the last
    :meth:`restart_peak`.
    """

    def __init__(self, known: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self._known: dict[int, torch.UntypedStorage] = {}
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}
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

    def settled(self) -> int:
        """:meth:`live`, once gloo's threads have let go of the tensors of finished calls."""
        least = self.live()
        for _ in range(SETTLE_TRIES):
            time.sleep(SETTLE_S)
            least = min(least, self.live())
        return least

    def restart_peak(self) -> None:
        self.peak = self.live()
