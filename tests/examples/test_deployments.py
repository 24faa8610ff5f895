"""Deployment files: pods and claims against Kubernetes' schema, the rest against the fields of KubeRay in use."""

from __future__ import annotations

import copy
import re
import shlex
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from gym_ray.settings import load_settings, server_config_paths

DEPLOYMENTS = Path(__file__).parents[2] / "examples" / "deployments"
VERSION = "1.30"
RAY_JOB = {
    *("entrypoint", "submissionMode", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished", "backoffLimit"),
    *("submitterPodTemplate", "rayClusterSpec"),
}
HEAD = {"rayStartParams", "template"}
WORKERS = {*HEAD, "groupName", "replicas", "minReplicas", "maxReplicas"}


def documents() -> dict[str, dict[str, Any]]:
    found = yaml.safe_load_all((DEPLOYMENTS / "kuberay-rayjob.yaml").read_text("utf-8"))
    return {document["kind"]: document for document in found}


def templates() -> dict[str, dict[str, Any]]:
    spec = documents()["RayJob"]["spec"]
    cluster = spec["rayClusterSpec"]
    workers = {group["groupName"]: group["template"] for group in cluster["workerGroupSpecs"]}
    return {"submitter": spec["submitterPodTemplate"], "head": cluster["headGroupSpec"]["template"], **workers}


def as_pod(template: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "checked"}, "spec": template["spec"]}


@pytest.mark.parametrize("kind", ["PersistentVolumeClaim", "ConfigMap"])
def test_what_kubernetes_knows_fits_its_schema(kind: str) -> None:
    kubernetes_validate.validate(documents()[kind], VERSION, strict=True)


@pytest.mark.parametrize("name", ["submitter", "head", "workers"])
def test_pods_fit_the_schema(name: str) -> None:
    kubernetes_validate.validate(as_pod(templates()[name]), VERSION, strict=True)


def test_the_check_can_fail() -> None:
    wrong = copy.deepcopy(as_pod(templates()["head"]))
    wrong["spec"]["containers"][0]["volumeMount"] = []
    with pytest.raises(kubernetes_validate.ValidationError, match="volumeMount"):
        kubernetes_validate.validate(wrong, VERSION, strict=True)


def test_the_job_has_the_fields_of_kuberay() -> None:
    job = documents()["RayJob"]
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert set(job["spec"]) <= RAY_JOB
    cluster = job["spec"]["rayClusterSpec"]
    assert set(cluster) == {"rayVersion", "headGroupSpec", "workerGroupSpecs"}
    assert set(cluster["headGroupSpec"]) == HEAD
    for group in cluster["workerGroupSpecs"]:
        assert set(group) == WORKERS
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values()), "KubeRay wants text"


def test_every_node_has_the_volume_at_one_path_and_the_token_by_file() -> None:
    entrypoint = documents()["RayJob"]["spec"]["entrypoint"]
    for name, template in templates().items():
        (container,) = template["spec"]["containers"]
        environment = {entry["name"]: entry.get("value") for entry in container["env"]}
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
        assert set(mounts) == set(volumes), name
        assert environment["RAY_AUTH_MODE"] == "token"
        assert environment["RAY_AUTH_TOKEN_PATH"].rpartition("/")[0] == mounts["token"]
        assert "secret" in volumes["token"]
        if name != "submitter":
            assert volumes["shared"]["persistentVolumeClaim"]["claimName"] == "gym-ray-shared"
            assert f"doctor {mounts['shared']} " in entrypoint
            assert template["spec"]["securityContext"]["runAsUser"] == 1000


def test_the_entrypoint_is_a_command_with_settings_that_are_right(tmp_path: Path) -> None:
    shell, flag, script = shlex.split(documents()["RayJob"]["spec"]["entrypoint"])
    assert (shell, flag) == ("sh", "-c")
    doctor, _, run = script.partition(" && exec ")
    assert doctor.split()[:2] == ["gym-ray", "doctor"]
    overrides = [word for word in run.split() if word.startswith("++")]
    policy = tmp_path / "policy.yaml"
    policy.write_text(documents()["ConfigMap"]["data"]["policy.yaml"])
    paths = server_config_paths(resources_servers=["mcqa"], model_type="openai_model", configs=[policy])
    settings = load_settings(paths, overrides, env_file=None, environ={"POLICY_API_KEY": "k"})
    assert settings.capture_dir == Path("/shared/gym-ray/mcqa/model-calls")
    assert "mcqa_simple_agent" in settings.servers


def test_each_says_what_was_not_run() -> None:
    for name, word in (("kuberay-rayjob.yaml", "UNVERIFIED"), ("two-nodes-nfs.md", "**Unverified:**")):
        assert word in (DEPLOYMENTS / name).read_text("utf-8")


def test_the_walk_names_files_and_options_that_exist() -> None:
    text = (DEPLOYMENTS / "two-nodes-nfs.md").read_text("utf-8")
    for link in re.findall(r"\]\((\.\.?/[^)]+)\)", text):
        assert (DEPLOYMENTS / link).exists(), link
    (mount,) = [line for line in text.splitlines() if line.startswith("192.0.2.10:/srv")]
    options = set(mount.split()[3].split(","))
    assert {"hard", "actimeo=0", "lookupcache=none"} <= options
    assert not {"nolock", "soft"} & options
