"""A program of your own as an agent: it knows nothing of gym-ray, and finds model and key as every OpenAI client does.

It reads the question as JSON from standard input, streams the answer, and prints it. Run it as a ``command_agent``:

    command: "{python} {start_directory}/examples/agents/command_line_agent.py {model}"
"""

import json
import sys

from openai import OpenAI

params = json.load(sys.stdin)
with OpenAI(max_retries=0) as client, client.responses.stream(**{**params, "model": sys.argv[1]}) as stream:
    print(stream.get_final_response().output_text)
