"""The capture ledger: one token-free row of every committed call, and why other calls have none."""
