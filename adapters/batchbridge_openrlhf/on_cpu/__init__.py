"""OpenRLHF on a CPU, unedited, with scripted rollouts: what `batchbridge try openrlhf` and our own tests run."""
