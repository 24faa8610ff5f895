"""How the files of a token directory are written, read and kept in order.

``gym_ray.token_id_capture.store`` is the door to it.
"""
