"""What a training loop gets of its rollouts: exactly one result each, whatever became of them (D169, B65, B66)."""
