from __future__ import annotations

import ast
from itertools import pairwise
from pathlib import Path

from gym_ray.token_id_capture import reasons

CODES = {name: value for name, value in vars(reasons).items() if name.isupper()}


def test_a_constant_has_the_name_of_its_value() -> None:
    assert {name: name.lower() for name in CODES} == CODES


def test_each_constant_says_what_it_means() -> None:
    body = ast.parse(Path(reasons.__file__).read_text("utf-8")).body
    told = [
        node.target.id
        for node, following in pairwise(body)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(following, ast.Expr)
    ]
    assert sorted(told) == sorted(CODES)


def test_every_code_is_used() -> None:
    package = Path(reasons.__file__).parents[1]
    texts = [path.read_text("utf-8") for path in package.rglob("*.py") if path != Path(reasons.__file__)]
    assert [name for name in CODES if not any(name in text for text in texts)] == []
