"""Training evidence: the exact tokens that a policy saw and sampled, linked only where the link is proved (B).

Nothing here imports Ray, an HTTP server or torch: an inference worker can load it.
"""
