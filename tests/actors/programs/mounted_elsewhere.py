"""Start a Ray cluster of two nodes, of which the second has another mount at a directory; run a command in it.

    python mounted_elsewhere.py SIZE DIRECTORY -- COMMAND...

The second node is a process tree in a mount namespace of its own, where a fresh file system of that size covers the
directory.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from gym_ray.testing.small_disk import on_small_disk


def main(size: str, covered: str, command: list[str]) -> int:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    node = on_small_disk(Path(covered), size, [sys.executable, __file__, cluster.address])
    second = subprocess.Popen(node, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert second.stdout is not None
        assert second.stdout.readline() == b"up\n", "the second node did not start"
        return subprocess.run(command, env=os.environ | {"RAY_ADDRESS": cluster.address}, check=False).returncode
    finally:
        second.communicate()  # closes its standard input, which ends it
        cluster.shutdown()


def be_a_node(address: str) -> None:
    """Be a node of a cluster until standard input ends."""
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    parameters = RayParams(
        gcs_address=address,
        redis_address=address,
        node_ip_address="127.0.0.1",
        num_cpus=1,
        object_store_memory=100 * 1024 * 1024,
        min_worker_port=0,
        max_worker_port=0,
        node_manager_port=0,
        include_log_monitor=False,
    )
    node = Node(parameters, head=False, shutdown_at_exit=True, spawn_reaper=True)
    sys.stdout.write("up\n")
    sys.stdout.flush()
    sys.stdin.read()
    node.kill_all_processes(check_alive=False, allow_graceful=True)


if __name__ == "__main__":
    if "--" in sys.argv:
        at = sys.argv.index("--")
        sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[at + 1 :]))
    be_a_node(sys.argv[1])
