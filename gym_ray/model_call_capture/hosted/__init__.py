"""Captures of model servers without the mount: another process, which has it, writes their records."""
