"""What leaves a run for other tools: which parts of a record they get, and under which names."""

from gym_ray.export.names import mlflow_name
from gym_ray.export.view import exported_record

__all__ = ["exported_record", "mlflow_name"]
