show() { command show function "$@"; }
show a
command show b
unset -f show
f() { show in f "$@"; }
time f 1
time -p show 2
g() { declare -g global=1; declare own=2; show ${own}; }
g
show "$global" "${own-none}"
x=1
true && x=2 && show $x 2>&1 | true
show $x
true a | true b | true c && x=3 && show $x
show $x
x=4 &
wait
show $x
{ x=5; show $x; } &
wait
show $x
for i in {1..50}; do eval "x=$i"; done
show $x
eval 'x=0'; eval 'x=1'; eval 'x=2'
select_last() { shift 5; show "$@"; set one two; show "$@"; }
select_last a b
