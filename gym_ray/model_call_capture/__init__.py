"""Evaluation evidence: every model call of a rollout, as it went over the wire."""
