"""Collect LLM-agent rollouts on Ray and keep the evidence of every model call.

The package imports nothing heavy: Ray is loaded only by ``gym_ray.actors`` and inside the commands that need it.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
