A=(one "two three" $((1+2)))
A+=(four)
A[5]=six
show "${A[@]}" ${A[1]} "${A[1]}" ${#A[@]} "${A[*]}" ${A[-1]} "${A[@]:1:2}" ${!A[@]} ${#A[1]} pre"${A[@]:0:2}"post $A
E=()
show "${E[@]}" end ${E[@]} "x${E[@]}y"
declare -A M=([k]=v ["two words"]=w)
M[new]=1
show ${M[k]} "${M["two words"]}" ${M[new]} ${#M[@]}
