"""A program that asks the model, tells its process id in the directory that it is given, and stays.

Started a second time for the same question it answers. It knows only what its environment says, and imports little, so
that little of its time goes by before it asks.
"""

import json
import os
import sys
import time
import urllib.request
from pathlib import Path

params, told = json.load(sys.stdin), Path(sys.argv[1]) / os.environ["GYM_RAY_ROLLOUT_ID"].split("-a")[0]
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/responses",
    json.dumps({**params, "stream": True}).encode(),
    {"authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "content-type": "application/json"},
)
with urllib.request.urlopen(request) as answer:
    events = answer.read().decode()
if not told.exists():
    draft = told.with_suffix(".draft")
    draft.write_text(str(os.getpid()))
    draft.rename(told)
    while True:
        time.sleep(60)
last = json.loads(events.strip().rsplit("data: ", 1)[-1])
sys.stdout.write(last["response"]["output"][0]["content"][0]["text"])
