MODEL=(
   --num-layers 2
   --hidden-size 64
   --swiglu
   --tensor-model-parallel-size 2
)
