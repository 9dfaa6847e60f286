NODES=2; GPUS=8; MICRO=4
WORLD=$((NODES * GPUS)); ACC=$(( (256 + WORLD * MICRO - 1) / (WORLD * MICRO) ))
show $WORLD $ACC $(( WORLD >= 16 ? 1 : 0 )) $((NODES ** 3 ** 1)) $(( 7 & 3 | 8 ^ 1 )) $(( -7 / 2 )) $[1 + 2]
(( WORLD > 8 )) && show big
if (( WORLD % 3 == 0 )); then show no; else show rest $((WORLD % 3)); fi
let "X = WORLD / 2" Y=3
show $X $Y $((X += Y, X - 1)) $X $((Y++ + ++Y)) $Y
i=0; while (( i < 3 )); do (( i += 2 )); done; show $i
declare -i Z=2+3; show $Z
E="NODES * 2"; show $((E)) $((E + 1)) "$(( E ))"
A=(1 2 3); show $(( A[0] + A[2] )) $(( ${#A[@]} * 10 )) ${A[$((1+1))]} ${A[i-3]}
show $((  0x1F  )) $((2#101)) $((1 ? 2 ? 3 : 4 : 5)) $((!0 && 1))
