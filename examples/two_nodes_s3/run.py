"""A run over two Ray nodes whose captures go to an object store: no shared directory, no mount, no locks.

    python examples/two_nodes_s3/run.py --output results/two-nodes

Both nodes are processes of this machine, and the store is moto, which speaks S3 (`pip install 'moto[server]'
'gym-ray[s3]'`). On a real cluster only the settings file is needed: name your bucket in it, give every node the rights
to it, and run `gym-ray doctor s3://bucket/prefix` first. Each model server publishes segments of its own, and the
joiners read the calls of a rollout by name, so nobody waits for a listing.
"""

import argparse
import json
import logging
import os
import secrets
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gym_ray.capture_location import CaptureLocation
from gym_ray.model_call_capture.captures import open_captures
from gym_ray.storage.opening import open_store
from gym_ray.testing.s3_server import s3_server

ROWS = Path(__file__).parents[1] / "order_desk" / "tasks.jsonl"


def settings(location: CaptureLocation) -> dict[str, Any]:
    """Return the settings of the run: a model server on each node, captures in the store."""
    return {
        "observability_enabled": True,
        "model_call_capture_dir": location.where,
        "model_call_capture_storage_options": dict(location.storage_options),  # better: the role of the machine
        "num_rollout_workers": 2,
        "policy_model": {"responses_api_models": {"local_model": {"replicas": "per_node"}}},
    }


def write_private(path: Path, document: Mapping[str, Any]) -> Path:
    """Write a file that only its owner can read: the settings may hold credentials. YAML reads JSON."""
    path.touch(mode=0o600)
    path.write_text(json.dumps(document))
    return path


def collect(address: str, config: Path, output: Path, limit: int) -> int:
    """Run the evaluation in the cluster; return its exit code."""
    command = [
        *(sys.executable, "-m", "gym_ray", "eval", "run", "--resources-server", "order_desk"),
        *("--model-type", "local_model", "--config", str(config), "--agent", "order_desk_simple_agent"),
        *("--input", str(ROWS), "--limit", str(limit), "--output", str(output)),
    ]
    environment = os.environ | {"RAY_ADDRESS": address}
    return subprocess.run(command, env=environment, check=False).returncode  # noqa: S603 - words of our own


def show(location: CaptureLocation, output: Path) -> None:
    """Print what each rollout's record and the store say, and how few objects the calls took."""
    captures = open_captures(location)
    try:
        for record in map(json.loads, output.read_text().splitlines()):
            rollout_id = f"{record['_ng_task_index']}-{record['_ng_rollout_index']}"
            snapshot = captures.snapshot(rollout_id, None)
            attached = len(record["ng_model_call_capture"]["calls"])
            stored = len(snapshot.data.splitlines()) if snapshot.data else 0
            print(f"{rollout_id}: reward {record['reward']}, {attached} calls, {stored} of them in the store")
    finally:
        captures.close()
    store = open_store(location.where, storage_options=location.storage_options)
    try:
        segments = store.list("segments/")
    finally:
        store.close()
    print(f"{len({name.split('/')[1] for name in segments})} writers published {len(segments)} segments")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=4, help="rows to run")
    parser.add_argument("--output", type=Path, default=Path("results/two-nodes"))
    args = parser.parse_args()
    output = args.output.absolute()
    output.mkdir(parents=True, exist_ok=True)
    if "RAY_AUTH_TOKEN_PATH" not in os.environ:  # both nodes and the run need the same one
        token = output / "ray-token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

    from ray.cluster_utils import Cluster  # Ray reads its environment when it is imported

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # the store's line for every request
    with s3_server() as server:
        location = CaptureLocation.of(server.new_url(), server.options())
        config = write_private(output / "settings.json", settings(location))
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
        try:
            cluster.add_node(num_cpus=2)
            cluster.wait_for_nodes()
            code = collect(cluster.address, config, output / "rollouts.jsonl", args.limit)
        finally:
            cluster.shutdown()
        if code == 0:
            show(location, output / "rollouts.jsonl")
    return code


if __name__ == "__main__":
    sys.exit(main())
