from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from aicpnode.errors import UserError
from aicpnode.genesis import Split
from aicpnode.training import corpus
from aicpnode.training.corpus import SEPARATOR, SHARD_BYTES_MAX, ShardText, build_corpus, split_of


def joined(shards: list[ShardText], split: Split) -> bytes:
    return b"".join(shard.content for shard in shards if shard.split is split)


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def many(count: int = 120) -> dict[str, bytes]:
    return {f"part/{i:03d}.txt": b"%d " % i * 500 for i in range(count)}


def test_the_standard_library_is_enough_text_and_split_by_file() -> None:
    shards = build_corpus()
    train, validation = joined(shards, Split.TRAIN), joined(shards, Split.VALIDATION)
    assert len(train) > 5_000_000
    assert 0.02 < len(validation) / len(train) < 0.12
    assert b"class ArgumentParser" in train + validation
    assert all(shard.record.size <= SHARD_BYTES_MAX for shard in shards)
    assert [shard.record for shard in shards] == [shard.record for shard in build_corpus()]


def test_a_folder_is_split_by_the_names_of_its_files(tmp_path: Path) -> None:
    files = many()
    shards = build_corpus(write(tmp_path, files))
    for split in Split:
        names = sorted(name for name in files if split_of(name) is split)
        assert joined(shards, split) == SEPARATOR.join(files[name] for name in names)


def test_the_side_of_a_file_does_not_depend_on_the_others(tmp_path: Path) -> None:
    files = many()
    before = joined(build_corpus(write(tmp_path / "a", files)), Split.VALIDATION)
    files["extra.txt"] = b"more" * 100
    after = joined(build_corpus(write(tmp_path / "b", files)), Split.VALIDATION)
    assert split_of("extra.txt") is Split.TRAIN
    assert before == after


def test_tests_hidden_files_and_caches_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, many())
    before = build_corpus(tmp_path)
    write(
        tmp_path, {"test/a.txt": b"x", "p/tests/b.txt": b"x", "site-packages/c.txt": b"x", ".git/d": b"x", ".e": b"x"}
    )
    assert [s.record for s in build_corpus(tmp_path)] == [s.record for s in before]


def test_folder_links_are_not_followed(tmp_path: Path) -> None:
    write(tmp_path / "data", many())
    before = build_corpus(tmp_path / "data")
    write(tmp_path / "elsewhere", {"secret.txt": b"x" * 10_000})
    (tmp_path / "data" / "link").symlink_to(tmp_path / "elsewhere")
    assert [s.record for s in build_corpus(tmp_path / "data")] == [s.record for s in before]


@pytest.mark.parametrize("inside_folder", [False, True])
def test_the_tail_of_a_single_file_is_for_validation(tmp_path: Path, inside_folder: bool) -> None:
    content = bytes(range(256)) * 1000
    write(tmp_path, {"only.txt": content})
    shards = build_corpus(tmp_path if inside_folder else tmp_path / "only.txt")
    assert joined(shards, Split.TRAIN) + joined(shards, Split.VALIDATION) == content
    assert len(joined(shards, Split.VALIDATION)) == len(content) // 20


def test_shards_are_cut_at_the_limit_and_named_by_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "SHARD_BYTES_MAX", 60_000)
    write(tmp_path, {"only.txt": b"0123456789abcdef" * 8000})
    shards = build_corpus(tmp_path / "only.txt")
    assert [len(shard.content) for shard in shards] == [60_000, 60_000, 1600, 6400]
    assert [shard.name for shard in shards] == ["train-0000", "train-0001", "train-0002", "validation-0000"]
    for shard in shards:
        assert shard.record.sha256 == hashlib.sha256(shard.content).digest()
        assert shard.record.size == len(shard.content)


@pytest.mark.parametrize(
    ("files", "where"),
    [
        ({"a.txt": b"short"}, "a.txt"),
        ({}, ""),
        ({"a.txt": b"", "b.txt": b""}, ""),
        ({}, "missing"),
        ({"a": b"1", "b": b"2"}, ""),
    ],
)
def test_too_little_text_is_refused_with_advice(tmp_path: Path, files: dict[str, bytes], where: str) -> None:
    write(tmp_path, files)
    with pytest.raises(UserError) as caught:
        build_corpus(tmp_path / where)
    assert caught.value.advice


def test_too_much_text_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, many())
    monkeypatch.setattr(corpus, "CORPUS_BYTES_MAX", 50_000)
    with pytest.raises(UserError, match="more than 50000 bytes"):
        build_corpus(tmp_path)
