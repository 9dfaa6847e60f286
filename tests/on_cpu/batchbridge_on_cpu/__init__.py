"""What this repository's tests run real frameworks with on a CPU: scripted rollouts, one module for each seam; and what
they hold the runs' ends (`trajectories`) and critics (`value_oracle`) against.

A distribution of its own, because worker processes import it too; no user needs it.
"""
