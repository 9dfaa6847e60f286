"""What this repository's tests run real frameworks with on a CPU: scripted rollouts, one module for each seam.

A distribution of its own, because worker processes import it too; no user needs it.
"""
