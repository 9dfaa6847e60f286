A=" lead  and trail "
show $A "x"$A"y" "$A" a$A
B="--flag --n 3"
show $B --m=$B
