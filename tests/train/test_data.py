"""A batch depends on (seed, step) alone; bad data is named before anything starts."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pdtlib.engine.data import Batches, Corpus, shuffled, standard_library
from pdtlib.engine.loss import IGNORED


def text_corpus(tmp_path: Path, size: int) -> Corpus:
    path = tmp_path / "corpus.txt"
    path.write_bytes(bytes(i % 251 for i in range(size)))
    return Corpus([path], vocab=256)


@given(size=st.integers(1, 700), key=st.integers(0, 2**64))
def test_shuffle_is_a_permutation(size: int, key: int) -> None:
    assert sorted(shuffled(np.arange(size), size=size, key=key).tolist()) == list(range(size))


def test_shuffle_mixes_and_depends_on_the_key() -> None:
    numbers = np.arange(5000)
    one, two = (shuffled(numbers, size=5000, key=key) for key in (1, 2))
    assert abs(np.corrcoef(numbers, one)[0, 1]) < 0.05
    assert abs(np.corrcoef(one[:-1], one[1:])[0, 1]) < 0.05
    assert (one == two).mean() < 0.01


def test_standard_library_is_the_default_corpus() -> None:
    corpus = Corpus(vocab=256)
    assert len(corpus) > 3_000_000
    files = standard_library()
    assert files == sorted(files)
    first = files[0].read_bytes()
    assert corpus.slice(0, len(first)).astype(np.uint8).tobytes() == first
    assert not any("test" in path.parts for path in files)


def test_every_token_is_a_target_once_an_epoch(tmp_path: Path) -> None:
    """Whatever the step, the rank count or the micro-batch: no sample lost, none seen twice."""
    batches = Batches(text_corpus(tmp_path, 1003), seq=8, global_batch=9, seed=0)
    assert batches.windows == 126
    seen = np.concatenate([batches.sample_windows(step, first=0, count=9) for step in range(14)])
    assert sorted(seen) == list(range(126))
    targets = torch.cat([batches.take(step, first=0, count=9)[1] for step in range(14)])
    valid = targets[targets != IGNORED]
    assert len(valid) == 1002
    assert sorted(valid.tolist()) == sorted(i % 251 for i in range(1, 1003))
    second = np.concatenate([batches.sample_windows(step, first=0, count=9) for step in range(14, 28)])
    assert sorted(second) == list(range(126))
    assert (second != seen).any()


def test_a_batch_knows_nothing_of_the_layout(tmp_path: Path) -> None:
    batches = Batches(text_corpus(tmp_path, 1003), seq=8, global_batch=12, seed=5)
    for step in (0, 3, 10, 11):  # step 10 straddles two epochs: 126 windows / 12
        whole = batches.take(step, first=0, count=12)
        for size in (1, 2, 3, 4, 6):
            parts = [batches.take(step, first=at, count=size) for at in range(0, 12, size)]
            for index in (0, 1):
                assert torch.equal(torch.cat([part[index] for part in parts]), whole[index])
    other = Batches(text_corpus(tmp_path, 1003), seq=8, global_batch=12, seed=6)
    assert not torch.equal(other.take(0, first=0, count=12)[0], batches.take(0, first=0, count=12)[0])


def test_targets_are_the_next_tokens(tmp_path: Path) -> None:
    batches = Batches(text_corpus(tmp_path, 500), seq=8, global_batch=4, seed=1)
    inputs, targets = batches.take(2, first=0, count=4)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_token_files_run_on_from_one_to_the_next(tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, 60_000, 1000)
    narrow = [tmp_path / f"{i}.bin" for i in range(3)]
    for path, part in zip(narrow, np.split(tokens, [100, 101]), strict=True):
        path.write_bytes(part.astype("<u2").tobytes())
    corpus = Corpus(narrow, vocab=60_000)
    assert len(corpus) == 1000
    for start, stop in ((0, 1000), (90, 110), (99, 102), (100, 101), (995, 2000), (1000, 1005)):
        assert corpus.slice(start, stop).tolist() == tokens[start:stop].tolist()
    wide = tmp_path / "wide.bin"
    wide.write_bytes(tokens.astype("<u4").tobytes())
    assert Corpus([wide], vocab=100_000).slice(3, 7).tolist() == tokens[3:7].tolist()
    named = wide.rename(tmp_path / "wide.uint32.bin")
    assert Corpus([named], vocab=60_000).slice(3, 7).tolist() == tokens[3:7].tolist()


def bad_data(tmp_path: Path, *contents: bytes | None, name: str = "x.txt", vocab: int = 256) -> str:
    paths = []
    for i, content in enumerate(contents):
        paths.append(tmp_path / f"{i}{name}")
        if content is not None:
            paths[-1].write_bytes(content)
    with pytest.raises(ValueError, match="data=") as caught:
        Batches(Corpus(paths, vocab=vocab), seq=8, global_batch=4, seed=0)
    return str(caught.value)


def test_bad_data_is_named(tmp_path: Path) -> None:
    assert "0x.txt: there is no such file\ndata=" in bad_data(tmp_path, None, b"")
    assert "empty" in bad_data(tmp_path, b"")
    assert "needs at least 4 (26 tokens)" in bad_data(tmp_path, b"a" * 25)
    ids = np.array([1, 2, 300], dtype="<u2").tobytes()
    assert "holds token 300" in bad_data(tmp_path, ids, name=".bin")
    assert "whole number" in bad_data(tmp_path, b"abc", name=".bin")
    looks_wide = np.arange(100, dtype="<u4").tobytes()
    assert ".uint32.bin" in bad_data(tmp_path, looks_wide, name=".bin", vocab=50_000)
    with pytest.raises(ValueError, match="directory"):
        Corpus([tmp_path], vocab=256)
    with pytest.raises(ValueError, match="mixed"):
        Corpus([tmp_path / "0x.txt", tmp_path / "0.bin"], vocab=256)
    with pytest.raises(ValueError, match=r"model\.vocab=100"):
        Corpus(vocab=100)
