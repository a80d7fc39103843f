"""What the model reads: tokens of a corpus, cut into sequences, in an order that knows nothing of the layout.

The corpus is cut into windows of ``seq`` targets; every token after the first is the target of exactly one
window, and positions past the end carry :data:`pdtlib.engine.loss.IGNORED`. Windows are shuffled anew in
every epoch by a permutation keyed with (seed, epoch) that is computed, not stored. Sample number n of a
run, counted from its start over all steps and ranks, is therefore a pure function of (seed, n): a batch is
the same on one process and on a thousand, and after a resume.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pdtlib.engine.loss import IGNORED

SKIPPED = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}
"""Folders of the standard library that are not read; several distributions leave the tests out."""

BYTE_VOCAB = 256


def standard_library() -> list[Path]:
    """The sources of Python's standard library, in the order of their paths."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found = (path for path in root.rglob("*.py") if not SKIPPED.intersection(path.relative_to(root).parts))
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())


class Corpus:
    """Tokens of one or more files, read as one long sequence.

    Without ``paths``, the standard library's sources. A file whose name ends in ``.bin`` holds token ids,
    as little-endian uint16 where ``vocab`` fits into 16 bits and uint32 otherwise (a name ending in
    ``.uint16.bin`` or ``.uint32.bin`` decides); any other file is text, and its bytes are its tokens.

    Raises ``ValueError`` with a line per problem: a missing, unreadable or empty file, text and token files
    mixed, a token id outside the vocabulary.
    """

    def __init__(self, paths: Sequence[Path] = (), *, vocab: int) -> None:
        self.name = ", ".join(map(str, paths)) or "Python's standard library"
        paths = list(paths)
        problems = [problem for path in paths if (problem := _unreadable(path))]
        kinds = {path.suffix == ".bin" for path in paths}
        if len(kinds) > 1:
            problems.append("data: text files and .bin token files cannot be mixed; give one kind")
        if problems:
            raise ValueError("\n".join(problems))
        if kinds == {True}:
            self._pieces = [_token_file(path, vocab) for path in paths]
        elif vocab < BYTE_VOCAB:
            raise ValueError(f"model.vocab={vocab}: bytes need a vocabulary of at least {BYTE_VOCAB}")
        else:
            text = b"".join(path.read_bytes() for path in paths or standard_library())
            self._pieces = [np.frombuffer(text, dtype=np.uint8)]
        self._starts = np.cumsum([0, *(len(piece) for piece in self._pieces)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def slice(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Tokens [start, stop), fewer at the end of the corpus."""
        stop = min(stop, len(self))
        parts = []
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        for index in range(first, len(self._pieces)):
            offset = int(self._starts[index])
            if offset >= stop:
                break
            parts.append(self._pieces[index][max(0, start - offset) : stop - offset])
        return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, dtype=np.int64)


def _unreadable(path: Path) -> str | None:
    if path.is_dir():
        return f"data={path}: is a directory; give files"
    if not path.exists():
        return f"data={path}: there is no such file"
    try:
        with path.open("rb") as file:
            return None if file.read(1) else f"data={path}: the file is empty"
    except OSError as error:
        return f"data={path}: cannot be read ({error.strerror})"


def _token_file(path: Path, vocab: int) -> npt.NDArray[np.unsignedinteger]:
    if path.name.endswith(".uint16.bin") or (vocab <= 2**16 and not path.name.endswith(".uint32.bin")):
        width = 2
    else:
        width = 4
    size = path.stat().st_size
    if size % width:
        raise ValueError(f"data={path}: {size} bytes are not a whole number of {8 * width}-bit tokens")
    tokens = np.memmap(path, dtype=f"<u{width}", mode="r")
    if width == 2 and len(tokens) % 2 == 0 and not tokens[1::2].any():
        raise ValueError(
            f"data={path}: every second 16-bit token is 0, so this looks like 32-bit tokens; "
            f"if it is, let its name end in .uint32.bin"
        )
    chunk = 1 << 24
    largest = max(int(tokens[at : at + chunk].max()) for at in range(0, len(tokens), chunk))
    if largest >= vocab:
        raise ValueError(
            f"data={path}: holds token {largest}, but model.vocab={vocab} (valid: 0 to {vocab - 1}, "
            f"read as {8 * width}-bit tokens)"
        )
    return tokens


def shuffled(numbers: npt.NDArray[np.int64], *, size: int, key: int) -> npt.NDArray[np.int64]:
    """Send each number of [0, size) to its place in a permutation that ``key`` selects, without storing it.

    A four-round Feistel network permutes the smallest even-bit range that holds ``size``; numbers that land
    outside are sent through again until they land inside (cycle walking; Black and Rogaway 2002).

    >>> sorted(shuffled(np.arange(10), size=10, key=7).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask = np.uint64((1 << half) - 1)
    rounds = np.frombuffer(hashlib.sha256(str(key).encode()).digest(), dtype=np.uint64)

    def permute(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        left, right = x >> np.uint64(half), x & mask
        for round_key in rounds:
            mixed = (right ^ round_key) * np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
            left, right = right, left ^ ((mixed >> np.uint64(32)) & mask)
        return (left << np.uint64(half)) | right

    found = permute(np.asarray(numbers, dtype=np.uint64))
    while (outside := found >= size).any():
        found[outside] = permute(found[outside])
    return found.astype(np.int64)


class Batches:
    """The batches of a run: ``take(step, first, count)`` gives samples of one global batch.

    Raises ``ValueError`` when the corpus is too short for one global batch.
    """

    def __init__(self, corpus: Corpus, *, seq: int, global_batch: int, seed: int) -> None:
        self.corpus, self.seq, self.global_batch, self.seed = corpus, seq, global_batch, seed
        self.windows = max(0, -(-(len(corpus) - 1) // seq))
        if self.windows < global_batch:
            raise ValueError(
                f"data={corpus.name}: {len(corpus):,} tokens make {self.windows:,} sequences of "
                f"model.seq={seq}, but train.global_batch={global_batch} needs at least {global_batch:,} "
                f"({(global_batch - 1) * seq + 2:,} tokens)"
            )

    def sample_windows(self, step: int, *, first: int, count: int) -> npt.NDArray[np.int64]:
        """Which windows samples ``first`` ... ``first + count - 1`` of the step's global batch are."""
        numbers = step * self.global_batch + first + np.arange(count, dtype=np.int64)
        windows = np.empty_like(numbers)
        for epoch in np.unique(numbers // self.windows):
            here = numbers // self.windows == epoch
            key = f"{self.seed}:{epoch}"
            seeded = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "little")
            windows[here] = shuffled(numbers[here] % self.windows, size=self.windows, key=seeded)
        return windows

    def take(self, step: int, *, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets, each [count, seq] int64; targets past the end of the corpus are IGNORED."""
        inputs = np.zeros((count, self.seq), dtype=np.int64)
        targets = np.full((count, self.seq), IGNORED, dtype=np.int64)
        for row, window in enumerate(self.sample_windows(step, first=first, count=count)):
            tokens = self.corpus.slice(int(window) * self.seq, (int(window) + 1) * self.seq + 1)
            inputs[row, : len(tokens) - 1] = tokens[:-1]
            targets[row, : len(tokens) - 1] = tokens[1:]
        return torch.from_numpy(inputs), torch.from_numpy(targets)
