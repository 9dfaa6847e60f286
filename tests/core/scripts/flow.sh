set -euo pipefail
trap 'echo bye' EXIT
cd / && show cd
! false && show negated
for f in a b; do case $f in a) show A; continue ;; esac; show not-a $f; done
while :; do show once; break; done
for i in 1 2; do for j in 1 2; do [ $j = 2 ] && continue 2; show $i $j; done; done
{ show group; show of two; } && ( show sub; exit 3 ) || show after sub
x=$(if true; then echo yes; fi); show $x
if [[ abc == a?c && ! -z x ]] || false; then show glob; fi
select_me() { return 1; }; select_me || show returned
wait
show a;show b&
wait
status() { if [ "$1" = a ]; then return 0; fi; return 2; }
status a && show zero; status b || show two
bash -c 'exit 1' || show nested failed
(exit 0) && show subshell
