"""The plan of the house, held against the code: who may import whom, and what must not be loaded."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "gym_ray"

# From the ground up; a module imports only from its own room and from floors below it.
FLOORS = [
    {"errors", "exact_json"},
    {"capture_location", "child_interpreter", "log_context", "pace"},
    {"correlation", "server_directory", "settings"},
    {"storage", "dialects"},
    {"model_call_capture", "token_id_capture"},
    {"evidence", "model_server"},
    {"environments", "agents", "rollouts", "submission", "inference_worker", "export"},
    {"testing"},
    {"actors", "cli"},
    {"__main__"},
]
FLOOR_OF = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
SIDEWAYS = {("cli", "actors")}


def modules() -> list[Path]:
    product = [path for path in PACKAGE.rglob("*.py") if "actors" not in path.relative_to(PACKAGE).parts]
    return sorted(product) + sorted((ROOT / "actors").rglob("*.py"))


def room_of(path: Path) -> str:
    if path.is_relative_to(ROOT / "actors"):
        return "actors"
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            yield node.lineno, node.module or ""
            if node.module == "gym_ray":
                yield from ((node.lineno, f"gym_ray.{name.name}") for name in node.names)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)


def test_every_room_has_a_floor() -> None:
    rooms = {room_of(path) for path in modules()} - {"__init__"}
    assert rooms == set(FLOOR_OF)


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_imports_upward_or_sideways(path: Path) -> None:
    room = room_of(path)
    for line, name in imports(path):
        if not name.startswith("gym_ray.") or room == "__init__":
            continue
        other = name.split(".")[1]
        if other == room or other not in FLOOR_OF:
            continue
        below = FLOOR_OF[other] < FLOOR_OF[room] or (room, other) in SIDEWAYS
        assert below, f"{path.relative_to(ROOT)}:{line}: {room} imports {other}"


def module_imports() -> dict[str, set[str]]:
    """Module name to the modules that it imports; packages stand for their ``__init__``."""
    names = {name_of(path): path for path in modules()}
    found: dict[str, set[str]] = {}
    for name, path in names.items():
        found[name] = set()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                members = {f"{node.module}.{alias.name}" for alias in node.names}
                found[name] |= members & names.keys() or {node.module} & names.keys()
    return found


def name_of(path: Path) -> str:
    package = path.relative_to(ROOT).with_suffix("").parts
    parts = ("gym_ray", *package) if package[0] == "actors" else package
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_no_modules_import_each_other_in_a_circle() -> None:
    waiting = module_imports()
    while free := [name for name, imported in waiting.items() if not imported & waiting.keys()]:
        for name in free:
            del waiting[name]
    assert sorted(waiting) == [], "in a circle, or above one"


@pytest.mark.parametrize("package", ["gym_ray.model_call_capture", "gym_ray.token_id_capture", "gym_ray.model_server"])
def test_rooms_of_one_package_do_not_import_each_other(package: str) -> None:
    """They meet in the modules of the package itself."""

    def room(name: str) -> str:
        rest = name.removeprefix(f"{package}.").split(".")
        return rest[0] if name.startswith(f"{package}.") and len(rest) > 1 else ""

    edges = [(name, other) for name, imported in module_imports().items() for other in imported]
    assert [(a, b) for a, b in edges if room(a) and room(b) and room(a) != room(b)] == []


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_only_actors_import_ray(path: Path) -> None:
    if room_of(path) == "actors":
        return
    for line, name in imports(path):
        assert name.split(".")[0] != "ray", f"{path.relative_to(ROOT)}:{line}"


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_stay_short(path: Path) -> None:
    text = path.read_text("utf-8")
    limit = 200 if room_of(path) == "actors" else 400
    assert text.count("\n") <= limit, f"{path.relative_to(ROOT)} is longer than {limit} lines"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            length = node.end_lineno - node.lineno + 1
            assert length <= 50, f"{path.relative_to(ROOT)}:{node.lineno}: {node.name} has {length} lines"


@pytest.mark.parametrize(
    "module",
    [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in modules() if room_of(path) != "actors"],
)
def test_every_module_says_what_it_is_for(module: str) -> None:
    path = ROOT / (module.replace(".", "/") + ".py")
    assert ast.get_docstring(ast.parse(path.read_text("utf-8"))), f"{module} has no docstring"


def test_the_core_loads_neither_ray_nor_a_server() -> None:
    code = (
        "import sys, gym_ray.model_call_capture, gym_ray.rollouts.collection, gym_ray.settings\n"
        "loaded = {'ray', 'uvicorn', 'torch', 'xllamacpp', 'typer'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)
