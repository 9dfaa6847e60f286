"""The meaning of a run: the specification, its plan, weights and derived numbers. Standard library only."""
