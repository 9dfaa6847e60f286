run() { show first "$@" last $# "$1" ${2:-none}; }
run a "b c"
function twice { local n=$1; shift; run "$n" "$@"; }
twice x y z
n=outer; twice q; show $n
f() { if [ $# -eq 0 ]; then return; fi; show has $1; }
f; f 1
