"""verl on two CPU cores with scripted rollouts: what the equivalence tests run on. See docs/verl.md, "Testing"."""
