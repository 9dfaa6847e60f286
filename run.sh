python open_instruct/grpo_fast.py
