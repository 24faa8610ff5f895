"""Reads what an inference engine reports about the tokens of a call, and checks it. Nothing here speaks HTTP."""
