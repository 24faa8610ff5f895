"""The three wire dialects; nothing outside knows how a dialect looks."""

RESPONSES = "responses"
CHAT = "chat"
MESSAGES = "messages"

DIALECT_BY_PATH = {
    "/v1/responses": RESPONSES,
    "/v1/chat/completions": CHAT,
    "/v1/messages": MESSAGES,
}
"""Observed paths and their dialects (A14); the match is exact."""

__all__ = ["CHAT", "DIALECT_BY_PATH", "MESSAGES", "RESPONSES"]
