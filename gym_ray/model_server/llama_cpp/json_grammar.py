"""JSON schemas as GBNF rules: what a tool call's arguments or a structured answer may be.

Strings and lists are bounded even where the schema sets no bound, because a small model otherwise may never close
them. Objects hold their declared properties in the declared order and nothing else. Spacing is that of
``json.dumps``, so that a parsed and re-encoded value reads as it was generated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from gym_ray.errors import UnsupportedRequestError

__all__ = ["JsonGrammar", "quoted"]

MAX_STRING: Final = 256
MAX_ITEMS: Final = 32
MAX_DEPTH: Final = 24

_BASE_RULES: Final = {
    "json-char": r'[^"\\\x00-\x1F\x7F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4})',
    "json-string": f'"\\"" json-char{{0,{MAX_STRING}}} "\\""',
    "json-integer": '"-"? ("0" | [1-9] [0-9]{0,15})',
    "json-number": 'json-integer ("." [0-9]{1,15})? ([eE] [-+]? [0-9]{1,2})?',
    "json-boolean": '"true" | "false"',
    "json-null": '"null"',
    "json-value": "json-object | json-array | json-string | json-number | json-boolean | json-null",
    "json-pair": 'json-string ": " json-value',
    "json-object": f'"{{}}" | "{{" json-pair (", " json-pair){{0,{MAX_ITEMS}}} "}}"',
    "json-array": f'"[]" | "[" json-value (", " json-value){{0,{MAX_ITEMS}}} "]"',
}
_TYPES: Final = ("string", "integer", "number", "boolean", "null", "object", "array")
_UNIONS: Final = ("anyOf", "oneOf")


def quoted(text: str) -> str:
    """Return a GBNF literal for ``text``."""
    escaped = (
        text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    )
    return f'"{escaped}"'


class JsonGrammar:
    """Collects the rules of one grammar.

    Raises:
        UnsupportedRequestError: From its methods, when a schema asks for what a grammar cannot hold; the message names
            the place in the schema.
    """

    def __init__(self) -> None:
        self._rules = dict(_BASE_RULES)

    def add(self, name: str, rule: str) -> str:
        """Add a rule and return its name."""
        self._rules[name] = rule
        return name

    def text(self) -> str:
        """Return the whole grammar; it holds a rule called ``root``."""
        return "".join(f"{name} ::= {rule}\n" for name, rule in self._rules.items())

    def schema(self, schema: Mapping[str, Any], name: str, path: str) -> str:
        """Add rules for a schema and return the name of its first one.

        Args:
            schema: The JSON schema.
            name: Prefix of the rules' names: letters, digits and dashes.
            path: Place of the schema in the request, for complaints.
        """
        return _SchemaRules(self, schema).rule(schema, name, path, 0)


class _SchemaRules:
    """Walks one schema; ``$ref`` is resolved against its root."""

    def __init__(self, grammar: JsonGrammar, root: Mapping[str, Any]) -> None:
        self._grammar = grammar
        self._root = root
        self._references: dict[str, str] = {}

    def rule(self, schema: object, name: str, path: str, depth: int) -> str:
        if depth > MAX_DEPTH:
            raise UnsupportedRequestError(f"{path}: is nested deeper than {MAX_DEPTH} levels")
        if schema is True:
            return "json-value"
        if not isinstance(schema, Mapping):
            raise UnsupportedRequestError(f"{path}: should be a JSON schema object", 422)
        return self._grammar.add(name, self._body(schema, name, path, depth))

    def _body(self, schema: Mapping[str, Any], name: str, path: str, depth: int) -> str:
        if "$ref" in schema:
            return self._reference(schema["$ref"], name, path, depth)
        if "allOf" in schema:
            raise UnsupportedRequestError(f"{path}.allOf: is not supported; merge its parts into one schema")
        if "const" in schema:
            return _literal(schema["const"], f"{path}.const")
        if "enum" in schema:
            values = schema["enum"]
            if not isinstance(values, list) or not values:
                raise UnsupportedRequestError(f"{path}.enum: should be a list of at least one value", 422)
            return " | ".join(_literal(value, f"{path}.enum") for value in values)
        for union in _UNIONS:
            if union in schema:
                return self._union(schema[union], name, f"{path}.{union}", depth)
        kind = schema.get("type", "object" if "properties" in schema else None)
        if isinstance(kind, list):
            return self._union([{**schema, "type": item} for item in kind], name, f"{path}.type", depth)
        return self._typed(schema, kind, name, path, depth)

    def _typed(self, schema: Mapping[str, Any], kind: object, name: str, path: str, depth: int) -> str:
        if kind is None:
            return "json-value"
        if kind not in _TYPES:
            raise UnsupportedRequestError(f"{path}.type: {kind!r} is none of {', '.join(_TYPES)}", 422)
        if kind == "string":
            low, high = _bounds(schema, "minLength", "maxLength", MAX_STRING, path)
            return f'"\\"" json-char{{{low},{high}}} "\\""'
        if kind == "array":
            return self._array(schema, name, path, depth)
        if kind == "object":
            return self._object(schema, name, path, depth)
        return f"json-{kind}"

    def _union(self, options: object, name: str, path: str, depth: int) -> str:
        if not isinstance(options, Sequence) or isinstance(options, str) or not options:
            raise UnsupportedRequestError(f"{path}: should be a list of at least one schema", 422)
        return " | ".join(
            self.rule(option, f"{name}-{index}", f"{path}[{index}]", depth + 1) for index, option in enumerate(options)
        )

    def _array(self, schema: Mapping[str, Any], name: str, path: str, depth: int) -> str:
        low, high = _bounds(schema, "minItems", "maxItems", MAX_ITEMS, path)
        item = self.rule(schema.get("items", True), f"{name}-item", f"{path}.items", depth + 1)
        if high == 0:
            return '"[]"'
        filled = f'"[" {item} (", " {item}){{{max(low - 1, 0)},{high - 1}}} "]"'
        return filled if low else f'"[]" | {filled}'

    def _object(self, schema: Mapping[str, Any], name: str, path: str, depth: int) -> str:
        properties = schema.get("properties")
        if properties is None:
            return "json-object"
        if not isinstance(properties, Mapping):
            raise UnsupportedRequestError(f"{path}.properties: should be an object", 422)
        required = schema.get("required") or []
        if not isinstance(required, list):
            raise UnsupportedRequestError(f"{path}.required: should be a list of names", 422)
        pairs = []
        for index, (key, value) in enumerate(properties.items()):
            place = f"{path}.properties.{key}"
            rule = self.rule(value, f"{name}-{index}", place, depth + 1)
            pairs.append((f"{quoted(json.dumps(key, ensure_ascii=False) + ': ')} {rule}", key in required))
        return f'"{{" {self._members(pairs, name)} "}}"'

    def _members(self, pairs: Sequence[tuple[str, bool]], name: str) -> str:
        """Chain the pairs in order; each optional one may be left out, and commas stand only between two."""
        first = later = '""'
        for index in range(len(pairs) - 1, -1, -1):
            pair, needed = pairs[index]
            after = self._grammar.add(
                f"{name}-after-{index}", f'", " {pair} {later}' + ("" if needed else f" | {later}")
            )
            first = self._grammar.add(f"{name}-from-{index}", f"{pair} {later}" + ("" if needed else f" | {first}"))
            later = after
        return first

    def _reference(self, reference: object, name: str, path: str, depth: int) -> str:
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise UnsupportedRequestError(f"{path}.$ref: {reference!r} is not a reference into the same schema")
        if reference not in self._references:
            target: Any = self._root
            for step in reference[1:].strip("/").split("/") if reference != "#" else []:
                key = step.replace("~1", "/").replace("~0", "~")
                if not isinstance(target, Mapping) or key not in target:
                    raise UnsupportedRequestError(f"{path}.$ref: {reference!r} points to nothing", 422)
                target = target[key]
            self._references[reference] = f"{name}-ref"
            self.rule(target, f"{name}-ref", f"{path}.$ref", depth + 1)
        return self._references[reference]


def _literal(value: object, path: str) -> str:
    try:
        return quoted(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except (TypeError, ValueError):
        raise UnsupportedRequestError(f"{path}: {value!r} has no JSON form", 422) from None


def _bounds(schema: Mapping[str, Any], low_key: str, high_key: str, cap: int, path: str) -> tuple[int, int]:
    low, high = schema.get(low_key, 0), schema.get(high_key, cap)
    for key, value in ((low_key, low), (high_key, high)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise UnsupportedRequestError(f"{path}.{key}: should be a whole number of at least 0", 422)
    if low > cap:
        raise UnsupportedRequestError(f"{path}.{low_key}: {low} is more than the embedded model's bound of {cap}")
    if low > high:
        raise UnsupportedRequestError(f"{path}.{low_key}: {low} is more than {high_key} {high}", 422)
    return low, min(high, cap)
