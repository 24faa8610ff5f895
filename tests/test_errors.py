from __future__ import annotations

import inspect
import pickle

import pytest

from gym_ray import errors

SAMPLES: dict[str, tuple[object, ...]] = {
    "SettingsError": ("env.yaml", "policy_model.port", "'x' is not a port", "use 1 to 65535"),
    "InputError": ("rows.jsonl", 3, "agent_ref.name", "unknown agent"),
    "EngineError": ("gone", 502, b"{}"),
    "EngineUnavailableError": ("gone", 503, b"{}"),
    "EngineTimeoutError": ("late", 504, b""),
    "UnsupportedRequestError": ("n > 1", 400, b""),
    "InvalidRequestError": (({"type": "missing", "loc": ("body", "input"), "msg": "Field required"},),),
    "AgentError": ("agent_run_error", "broke", 500, "text"),
    "AgentTimeoutError": ("late",),
    "RequiredPrefixError": ("prefix_unproven", "the answer has no list of prompt token ids"),
    "ControlRequestError": ("GET …: HTTP 409: open checkpoint", 409, "open checkpoint"),
    "UnusableTokensError": ("length_mismatch", "3 generated ids, 2 log probs"),
    "ReceiptVerificationError": ("wrong_digest", "call 'c1': the manifest has another digest"),
    "RebuildError": ("missing_parent", "call 'c2'"),
    "ForeignKeyError": ("gr1:…", "0123456789abcdef", "fedcba9876543210", "/data/staging"),
    "StagedCallMissingError": ("gr1:…", "it was retired"),
    "MaskLimitExceededError": (3, 4, 0.5, {"capture_incomplete": 2}, 8),
}


def classes() -> list[type[errors.GymRayError]]:
    return [
        item
        for _, item in inspect.getmembers(errors, inspect.isclass)
        if issubclass(item, errors.GymRayError) and item.__module__ == errors.__name__
    ]


@pytest.mark.parametrize("cls", classes(), ids=lambda cls: cls.__name__)
def test_every_error_survives_pickling_with_all_it_carries(cls: type[errors.GymRayError]) -> None:
    error = cls(*SAMPLES.get(cls.__name__, ("message",)))
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_the_tree_in_the_docstring_names_every_class() -> None:
    missing = [cls.__name__ for cls in classes() if cls.__name__ not in (errors.__doc__ or "")]
    assert missing == []


@pytest.mark.parametrize(
    ("cls", "kind"),
    [
        (errors.RolloutFrozenError, RuntimeError),
        (errors.RolloutRetiredError, RuntimeError),
        (errors.RequiredPrefixError, RuntimeError),
        (errors.RecordConflictError, ValueError),
        (errors.RefusedRecordError, ValueError),
        (errors.DamagedRecordError, ValueError),
        (errors.NonFiniteLogProbError, ValueError),
        (errors.SeveralCarriersError, ValueError),
        (errors.UnusableTokensError, ValueError),
        (errors.StagedCallMissingError, KeyError),
        (errors.ReceiptVerificationError, ValueError),
        (errors.RebuildError, errors.ReceiptVerificationError),
        (errors.ForeignKeyError, ValueError),
    ],
)
def test_refusals_of_token_capture_are_also_of_a_builtin_kind(
    cls: type[errors.CaptureError], kind: type[Exception]
) -> None:
    assert issubclass(cls, errors.CaptureError)
    assert issubclass(cls, kind)


def test_settings_error_is_one_line_with_file_key_problem_and_remedy() -> None:
    error = errors.SettingsError("a.yaml", "x.y", "is wrong", "use z")
    assert str(error) == "a.yaml: x.y: is wrong; use z"


def test_input_error_names_file_line_and_field() -> None:
    assert str(errors.InputError("r.jsonl", 7, "input", "missing")) == "r.jsonl:7: input: missing"


def test_a_mask_limit_error_tells_counts_limit_and_reasons_most_frequent_first() -> None:
    error = errors.MaskLimitExceededError(3, 4, 0.5, {"unresolved_parent_calls": 1, "capture_incomplete": 2})
    assert str(error) == (
        "3 of 4 finalised rollouts are masked, a share of 0.75; max_mask_fraction allows 0.5; "
        "reasons: capture_incomplete: 2, unresolved_parent_calls: 1"
    )
    assert isinstance(error, RuntimeError)
    of_window = errors.MaskLimitExceededError(2, 3, 0.25, {}, 3)
    assert str(of_window).startswith("2 of 3 last finalised rollouts are masked")
    assert str(of_window).endswith("reasons: none was named")
