"""For tests of EasyR1: a CPU in place of GPUs, scripted rollouts in place of vLLM."""
