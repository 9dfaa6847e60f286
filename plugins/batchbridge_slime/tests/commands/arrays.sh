#!/bin/bash
SCRIPT_DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"
source "${SCRIPT_DIR}/model.sh"

SIZES=(
   --rollout-batch-size 16
   --n-samples-per-prompt 8
   --num-steps-per-rollout 2
   --num-rollout 100
   --use-dynamic-batch-size
   --max-tokens-per-gpu 4096
)
LOSS=(
   --advantage-estimator gspo
   --eps-clip 3e-4
   --use-tis
   --attention-dropout 0.0
   --hidden-dropout 0.0
   --lr-decay-style constant
)
ENGINES=(
   --sglang-mem-fraction-static 0.7
   --sglang-cuda-graph-bs 1 2 4 $(seq 8 8 32)
)

ray job submit --address="http://127.0.0.1:8265" \
   -- python3 train_async.py \
   --actor-num-nodes 2 \
   --actor-num-gpus-per-node 4 \
   "${MODEL[@]}" \
   "${SIZES[@]}" \
   "${LOSS[@]}" \
   "${ENGINES[@]}"
