"""Start a Ray cluster of two nodes on loopback, run the command given after ``--`` in it, and stop it again."""

from __future__ import annotations

import os
import subprocess
import sys


def main(command: list[str]) -> int:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        return subprocess.run(command, env=os.environ | {"RAY_ADDRESS": cluster.address}, check=False).returncode
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    sys.exit(main(sys.argv[sys.argv.index("--") + 1 :]))
