"""Bytes of the tensors that live while the reader's code runs, and their peak."""

from collections.abc import Iterable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts storages made by torch operations inside, each once, as long as they live.

    Tensors that existed before do not count. ``peak`` is the largest sum after any operation since the last
    :meth:`restart_peak`.
    """

    def __init__(self, known: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self._known = {tensor.untyped_storage()._cdata for tensor in known}
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                if storage._cdata not in self._known:
                    self._storages[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.peak = max(self.peak, self.live())
        return result

    def live(self) -> int:
        """Bytes alive now."""
        self._storages = {key: item for key, item in self._storages.items() if not item[0].expired()}
        return sum(size for _, size in self._storages.values())

    def restart_peak(self) -> None:
        self.peak = self.live()
