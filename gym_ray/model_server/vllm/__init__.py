"""A vLLM server as an engine: settings laid under requests, exact tokens out of its answers, tokens in."""
