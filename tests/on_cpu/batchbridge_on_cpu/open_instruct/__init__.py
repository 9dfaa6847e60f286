"""For tests of Open-Instruct: a CPU in place of GPUs, scripted completions in place of vLLM's."""
