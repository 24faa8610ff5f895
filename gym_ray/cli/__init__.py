"""The ``gym-ray`` command; Ray is loaded only inside the commands that need it."""
