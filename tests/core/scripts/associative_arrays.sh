declare -A N
N[rho0.7_seed46]=16
N[small]=4
N[8]=eight
K=small
show "${N[$K]}" "${N[rho0.7_seed46]}" "${N[8]}" "${N[$((3 + 5))]}" "${N[none]-unset}" ${#N[@]}
declare -A EMPTY=()
EMPTY[a.b]=1
show "${EMPTY[a.b]}" ${#EMPTY[@]}
f() {
    local -A L
    L[x.y]=2
    show "${L[x.y]}"
}
f
N[small]+=2
unset "N[8]"
show "${N[small]}" ${#N[@]}
declare -A MIXED=([8]=a [b]=c)
MIXED[08]=d
show "${MIXED[8]}" "${MIXED[b]}" "${MIXED[08]}"
PLAIN=(a b c)
i=1
show "${PLAIN[i]}"
