"""How a run gets to the service that it evaluates (D134)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gym_ray.settings.interpolation import escape_interpolation
from gym_ray.settings.problems import MIN_SECRET_CHARS
from gym_ray.submission.checking import mistake_at
from gym_ray.submission.documents import Submission
from gym_ray.submission.services import ExternalService, LocalModelService

__all__ = ["PolicySettings", "policy_settings"]

_NO_KEY = "dummy"
"""What the OpenAI clients need where a server asks for no key."""

_LOCAL_KEYS = ("model_path", "n_ctx", "n_parallel", "n_threads", "max_output_tokens")


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """What a run is told about the policy.

    Args:
        model_type: The model server in front of it, None when the run's own settings define one.
        settings: Settings of the run.
        secrets: Texts among them that must not be shown.
        inputs: Files among them, which must be where the run is.
    """

    model_type: str | None
    settings: Mapping[str, Any] = field(repr=False)
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    inputs: tuple[str, ...] = ()


def policy_settings(doc: Submission, environ: Mapping[str, str]) -> PolicySettings:
    """Return what the runs of a document are told about the policy.

    Args:
        doc: The document.
        environ: The environment of whoever submits, for a key that is ``host:NAME``.

    Raises:
        SettingsError: The variable of the key is not set.
    """
    driver = doc.driver
    if driver.policy_model is None:
        return PolicySettings(driver.policy_model_type, {})
    service = doc.services[driver.policy_model]
    if isinstance(service, LocalModelService):
        own = {key: getattr(service, key) for key in _LOCAL_KEYS if getattr(service, key) is not None}
        name = {} if service.model is None else {"model_name": service.model}
        options = {**own, **name, **service.options}
        block = {"policy_model": {"responses_api_models": {"local_model": options}}} if options else {}
        weights = (options["model_path"],) if isinstance(options.get("model_path"), str) else ()
        return PolicySettings(driver.policy_model_type or "local_model", block, inputs=weights)
    secrets: frozenset[str] = frozenset()
    if isinstance(service, ExternalService):
        url, name_there = service.base_url, service.model
        key, secrets = _api_key(doc, driver.policy_model, service, environ)
    else:
        url = f"http://{driver.policy_host}:{service.port}/v1"
        name_there, key = service.served_model_name or service.model, _NO_KEY
    settings = {"policy_base_url": url, "policy_model_name": name_there, "policy_api_key": key}
    return PolicySettings(driver.policy_model_type or "openai_model", settings, secrets)


def _api_key(
    doc: Submission, name: str, service: ExternalService, environ: Mapping[str, str]
) -> tuple[str, frozenset[str]]:
    """Return the key as a run's setting, and what of it is secret here."""
    given = "" if service.api_key is None else service.api_key.get_secret_value()
    kind, _, variable = given.partition(":")
    if not given:
        return _NO_KEY, frozenset()
    if kind == "runtime":
        return f"${{oc.env:{variable}}}", frozenset()
    if kind == "host":
        if variable not in environ:
            problem = f"the environment variable {variable} is not set here"
            remedy = f"export {variable}, or write runtime:{variable}"
            raise mistake_at(doc.document, ("services", name, "api_key"), problem, remedy)
        given = environ[variable]
    text = given.removeprefix("lit:")
    return escape_interpolation(text), frozenset({text} if len(text) >= MIN_SECRET_CHARS else ())
