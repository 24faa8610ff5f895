"""A vLLM server as an engine: defaults for requests, exact tokens out of answers, and parents' tokens into prompts."""
