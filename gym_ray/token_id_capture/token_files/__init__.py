"""The files of a token directory: how they are written, locked, read and removed.

They are used through :class:`gym_ray.token_id_capture.store.TokenCaptureStore`.
"""
