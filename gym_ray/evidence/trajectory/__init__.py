"""Projects what a rollout left behind onto one trajectory, ``ng_trajectory`` 1.0 (D84-D101)."""

from gym_ray.evidence.trajectory.projection import TRAJECTORY_FIELD, Brought, Captured, project, task_id_of

__all__ = ["TRAJECTORY_FIELD", "Brought", "Captured", "project", "task_id_of"]
