"""The grammar of one generation: a tool call, structured JSON, or a text turn.

A tool call begins with a marker that text cannot begin with, so the first characters already say which it is, and
text may flow to the client from then on. With a base model every turn ends in its line end, after which the grammar
leaves nothing but an end token: the turn that comes back is exactly the turn that the template renders later.
"""

from __future__ import annotations

import json
from typing import Final

from gym_ray.dialects.neutral import PromptRequest, Tool
from gym_ray.model_server.llama_cpp.json_grammar import JsonGrammar, quoted
from gym_ray.model_server.llama_cpp.template import CALL_CLOSE, CALL_NAME, CALL_OPEN, TurnEnd, closing

__all__ = ["build_grammar"]

_LINE: Final = {
    "\n": r'line-start [^\n]* "\n"',
    "\n\n": r'line-start [^\n]* ("\n" [^\n]+)* "\n\n"',
}


def build_grammar(request: PromptRequest, turn_end: TurnEnd) -> str | None:
    """Return the GBNF grammar for a request, or None when the model may say anything.

    Raises:
        UnsupportedRequestError: A schema of the request has no grammar; the message names the place.
    """
    calls = request.tools if request.tool_choice.mode != "none" else ()
    if not calls and request.response_format is None and turn_end == "marker":
        return None
    grammar = JsonGrammar()
    options = []
    if calls:
        options.append(_call_rule(grammar, request))
    if not calls or request.tool_choice.mode == "auto":
        options.append(_text_rule(grammar, request, turn_end, may_call=bool(calls)))
    grammar.add("root", " | ".join(options))
    return grammar.text()


def _call_rule(grammar: JsonGrammar, request: PromptRequest) -> str:
    named = request.tool_choice.name
    tools = [tool for tool in request.tools if named in (None, tool.name)]
    rules = [_tool_rule(grammar, tool, request.tools.index(tool)) for tool in tools]
    return grammar.add("call", f'({" | ".join(rules)}) "\\n"')


def _tool_rule(grammar: JsonGrammar, tool: Tool, index: int) -> str:
    opening = quoted(f"{CALL_NAME}{json.dumps(tool.name, ensure_ascii=False)}{CALL_OPEN}")
    schema = tool.parameters or {"type": "object", "properties": {}}
    arguments = grammar.schema(schema, f"tool-{index}-arguments", f"tools[{index}].parameters")
    return grammar.add(f"tool-{index}", f"{opening} {arguments} {quoted(CALL_CLOSE)}")


def _text_rule(grammar: JsonGrammar, request: PromptRequest, turn_end: TurnEnd, *, may_call: bool) -> str:
    form = request.response_format
    if form is not None:
        if form.schema is None:
            return grammar.add("text", 'json-object "\\n"')
        return grammar.add("text", grammar.schema(form.schema, "answer", "response format schema") + ' "\\n"')
    grammar.add("line-start", r"[^\n\r\t <]" if may_call else r"[^\n\r\t ]")
    if turn_end == "line":
        return grammar.add("text", _LINE[closing(request)])
    return grammar.add("text", r"line-start [^\x00]*")
