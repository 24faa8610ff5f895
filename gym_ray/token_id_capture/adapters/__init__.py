"""Reads what an inference engine reports about the tokens of a call, and checks it. Nothing here speaks HTTP."""

from __future__ import annotations

from gym_ray.token_id_capture.adapters.llama_cpp import LlamaCppCaptureAdapter
from gym_ray.token_id_capture.adapters.media_spans import place_media_spans
from gym_ray.token_id_capture.adapters.megatron import MegatronCaptureAdapter
from gym_ray.token_id_capture.adapters.routes import (
    MISSING_ROUTE_SENTINEL,
    ExpertRoutes,
    classify_route_span,
    decode_routed_experts,
    encode_routed_experts,
    routed_experts_token_count,
)
from gym_ray.token_id_capture.adapters.vllm_capture import VLLMCaptureAdapter

__all__ = [
    "MISSING_ROUTE_SENTINEL",
    "ExpertRoutes",
    "LlamaCppCaptureAdapter",
    "MegatronCaptureAdapter",
    "VLLMCaptureAdapter",
    "classify_route_span",
    "decode_routed_experts",
    "encode_routed_experts",
    "place_media_spans",
    "routed_experts_token_count",
]
