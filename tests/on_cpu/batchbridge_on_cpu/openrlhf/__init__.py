"""OpenRLHF, unmodified, on CPUs with scripted rollouts: what equivalence tests run."""
