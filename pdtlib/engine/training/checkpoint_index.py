"""What a checkpoint holds, read without trust: torch writes the index as a pickle, which could run code."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata

from pdtlib.engine.training.failures import RunFailed


class CheckpointError(RunFailed, ValueError):
    """A checkpoint that cannot be written, or read into this model."""


HARMLESS = {
    ("torch.distributed.checkpoint.metadata", "Metadata"),
    ("torch.distributed.checkpoint.metadata", "MetadataIndex"),
    ("torch.distributed.checkpoint.metadata", "StorageMeta"),
    ("torch.distributed.checkpoint.metadata", "TensorStorageMetadata"),
    ("torch.distributed.checkpoint.metadata", "ChunkStorageMetadata"),
    ("torch.distributed.checkpoint.metadata", "BytesStorageMetadata"),
    ("torch.distributed.checkpoint.metadata", "TensorProperties"),
    ("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
    ("pathlib", "WindowsPath"),
    ("pathlib._local", "PosixPath"),
    ("pathlib._local", "WindowsPath"),
}


class _IndexUnpickler(pickle.Unpickler):
    """Builds nothing but the classes of a checkpoint's index."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in HARMLESS or (module == "torch" and isinstance(_torch(name), torch.dtype)):
            return super().find_class(module, name)
        raise CheckpointError(f"the checkpoint's index asks for {module}.{name}; it will not be read")


def _torch(name: str) -> Any:
    return getattr(torch, name, None)


def read_index(path: Path) -> Metadata:
    """What a checkpoint holds: keys, shapes and where each box lies. Raises :class:`CheckpointError`."""
    index = path / ".metadata"
    try:
        with index.open("rb") as file:
            metadata = _IndexUnpickler(file).load()
    except OSError as error:
        raise CheckpointError(f"{path} is not a complete checkpoint ({error.strerror}: .metadata)") from None
    except CheckpointError:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        raise CheckpointError(f"{index} is damaged: {error}") from error
    if not isinstance(metadata, Metadata):
        raise CheckpointError(f"{index} is damaged: it holds no index")
    return metadata


def demand_intact(path: Path) -> None:
    """Raise :class:`CheckpointError` unless the index can be read and every file holds what it lists."""
    for info in read_index(path).storage_data.values():
        file = path / info.relative_path
        size = file.stat().st_size if file.is_file() else 0
        if size < info.offset + info.length:
            raise CheckpointError(f"{file} is damaged: {size:,} bytes of {info.offset + info.length:,}")
