"""Ray actors that host the parts of ``gym_ray``: naming, placement, restart and metrics; no decision lives here."""
