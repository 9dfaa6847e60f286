MODEL=base; LR=1e-6; USE_KL=true; N=
ARGS=(--model "$MODEL")
ARGS+=(--lr="$LR")
if [ "$USE_KL" = true ]; then ARGS+=(--kl 0.1 --note "two words"); fi
[ -n "$N" ] && ARGS+=(--n "$N")
[[ -z $N ]] || ARGS+=(--never)
EXTRA="--flag --m 2"
show "${ARGS[@]}" $EXTRA ${N:+--n "$N"} ${LR:+--lr2 "$LR"}
unset 'ARGS[1]'
show "${ARGS[@]}" ${#ARGS[@]}
for ((i = 0; i < ${#ARGS[@]}; i++)); do :; done
show $i "${ARGS[@]:1}" "${ARGS[@]: -2}"
COPY=("${ARGS[@]}" tail)
show "${COPY[@]}" "${COPY[-1]}"
A=(a b c); A[1]=B; show "${A[*]}" "${A[@]/b/x}" "${A[@]#a}"
declare -a D=(x "y z"); show "${D[@]}"
declare -A M=([gpus]=8 [nodes]=2); show $((M[gpus] * M[nodes])) ${#M[@]}
unset M[gpus]; unset -f nothing; show ${#M[@]} "${!M[@]}"
