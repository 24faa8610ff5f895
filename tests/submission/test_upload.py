"""What a working directory would upload, what is refused, and what would be missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from gym_ray.errors import SettingsError, StorageError
from gym_ray.submission.upload import check_inputs, check_upload, copy_upload, ray_surprises, survey


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for name, text in {
        "main.py": "print()",
        ".gitignore": "data/\n*.log\n!kept.log\n",
        ".git/objects/pack": "x" * 1000,
        ".venv/lib/big.so": "x" * 1000,
        "results/old.jsonl": "x",
        "package/results/__init__.py": "",
        "package/__pycache__/a.pyc": "x",
        "package/.gitignore": "private.txt\n",
        "package/private.txt": "x",
        "package/code.py": "pass",
        "data/tasks.jsonl": "{}",
        "run.log": "x",
        "kept.log": "x",
        "large/one.bin": "x" * 5000,
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_only_what_a_job_needs_is_uploaded(tree: Path) -> None:
    upload = survey(tree)
    expected = ["kept.log", "large/one.bin", "main.py", "package/code.py", "package/results/__init__.py"]
    assert list(upload.files) == expected
    assert {".git", ".venv", "results", "data", "run.log", "package/private.txt"} <= set(upload.left_out)
    assert upload.left_out["data"] == ".gitignore"
    assert upload.largest_folders()[0] == ("large", 5000)
    assert upload.total_bytes == sum((tree / path).stat().st_size for path in expected)
    assert "large" in upload.summary()[1]


def test_excludes_win_over_every_other_rule(tree: Path) -> None:
    upload = survey(tree, ["large/", "!data/", "!results/"])
    assert "large/one.bin" not in upload.files
    assert {"data/tasks.jsonl", "results/old.jsonl"} <= set(upload.files)


def test_links_are_followed_but_not_in_circles(tree: Path) -> None:
    (tree / "linked").symlink_to(tree / "package", target_is_directory=True)
    (tree / "package" / "up").symlink_to(tree, target_is_directory=True)
    (tree / "nowhere").symlink_to(tree / "absent")
    upload = survey(tree)
    assert "linked/code.py" in upload.files
    assert upload.left_out["package/up"] == "a link to a folder above it"
    assert upload.unreadable == ("nowhere",)
    with pytest.raises(SettingsError, match="cannot be read: nowhere"):
        check_upload(upload, max_upload_mb=100)


@pytest.mark.parametrize("name", [".env", ".env.local", "env.yaml", "deploy.pem", "id_ed25519", "x/id_rsa", ".netrc"])
def test_what_looks_like_credentials_is_refused(tree: Path, name: str) -> None:
    (tree / name).parent.mkdir(exist_ok=True)
    (tree / name).write_text("key")
    with pytest.raises(SettingsError, match="looks like credentials") as raised:
        check_upload(survey(tree), max_upload_mb=100)
    assert name in str(raised.value)
    assert "excludes" in str(raised.value)
    check_upload(survey(tree, [name]), max_upload_mb=100)


@pytest.mark.parametrize("name", [".env.example", "id_rsa.pub", "environment.yaml", "keys.py"])
def test_what_only_resembles_credentials_is_not(tree: Path, name: str) -> None:
    (tree / name).write_text("text")
    check_upload(survey(tree), max_upload_mb=100)


def test_an_upload_that_is_too_large_names_the_largest_folders(tree: Path) -> None:
    with (tree / "large/one.bin").open("wb") as file:
        file.truncate(2_000_001)
    with pytest.raises(SettingsError, match=r"2\.0 MB would be uploaded, max_upload_mb allows 1 MB; largest: large"):
        check_upload(survey(tree), max_upload_mb=1)
    check_upload(survey(tree), max_upload_mb=3)


def test_nothing_to_upload_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="nothing would be uploaded"):
        check_upload(survey(tmp_path), max_upload_mb=1)
    with pytest.raises(SettingsError, match="is no directory"):
        survey(tmp_path / "absent")


def test_inputs_that_would_be_missing_are_named_with_the_reason(tree: Path) -> None:
    upload = survey(tree)
    check_inputs(upload, ["main.py", "./package/code.py", "/shared/rows.jsonl"])
    with pytest.raises(SettingsError) as raised:
        check_inputs(upload, ["data/tasks.jsonl", "absent.jsonl", "../rows.jsonl", "main.py"])
    text = str(raised.value)
    assert "data/tasks.jsonl (data is left out: .gitignore)" in text
    assert "absent.jsonl (there is no such file)" in text
    assert "../rows.jsonl (outside" in text
    assert "main.py" not in text
    with pytest.raises(SettingsError, match="no working directory is uploaded"):
        check_inputs(None, ["rows.jsonl"])
    check_inputs(None, ["main.py"], shipped=[tree])


def test_exactly_what_was_shown_is_copied(tree: Path, tmp_path: Path) -> None:
    upload = survey(tree)
    target = tmp_path / "copy"
    target.mkdir()
    copy_upload(upload, target)
    copied = {str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()}
    assert copied == set(upload.files)
    (tree / "main.py").write_text("print('grown')")
    with pytest.raises(StorageError, match=r"main\.py: changed from"):
        copy_upload(upload, target)


def test_what_changes_the_interpreter_is_told() -> None:
    assert ray_surprises({"PATH": "/bin"}) == []
    assert (
        "RAY_RUNTIME_ENV_HOOK"
        in ray_surprises({"RAY_RUNTIME_ENV_HOOK": "ray._private.runtime_env.uv_runtime_env_hook.hook"})[0]
    )
    assert "uv run" in ray_surprises({"UV_RUN_RECURSION_DEPTH": "1"})[0]
