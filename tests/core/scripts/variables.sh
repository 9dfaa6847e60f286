A=1
B="$A and more"
show $A "$B" $B "${A}b" ${B} --x=$A --y="$B"
