n=1 m=4
show $((n += (n *= ++n))) $n
show $((m += (3 ? 31 : 3) && m--)) $m
for ((i = (1 + 1); i < ((2) + 2); i++)); do show $i; done
! (( ++n - n )) && show not $n
x=
x+=(a b)
show ${#x[@]} "${x[@]}"
