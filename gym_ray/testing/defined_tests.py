"""Which tests a file defines, for tests that hold a map of statements to the tests that are really there."""

from __future__ import annotations

import ast
from pathlib import Path

__all__ = ["defined_tests"]


def defined_tests(file: Path) -> set[str]:
    """Return the names of the functions of a file, those of a class behind its name and ``::``."""
    body = ast.parse(file.read_text("utf-8")).body
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = {node.name for node in body if isinstance(node, functions)}
    for node in body:
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{inner.name}" for inner in node.body if isinstance(inner, functions)}
    return names
