A=x; A+=y; A+=" z"
ARGS="--a 1"; ARGS="$ARGS --b 2"; ARGS+=" --c 3"
show "$A" $ARGS
