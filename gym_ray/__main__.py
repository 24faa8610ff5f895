"""``python -m gym_ray`` is the ``gym-ray`` command."""

from gym_ray.cli.app import main

main()
