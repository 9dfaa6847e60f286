"""verl on a CPU, unmodified, with scripted rollouts: what `batchbridge try verl` and our own tests run."""
