"""What a run means: the specification, its plan, weights and derived numbers. Standard library only."""
