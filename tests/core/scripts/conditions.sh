A=grpo; B=
if [ "$A" = grpo ]; then show yes; else show no; fi
if [[ $A == gr* && -z $B ]]; then show glob; elif true; then show elif; fi
if [[ "$A" == "gr*" ]]; then show no; elif [ 3 -gt 2 ]; then show elif; else show else; fi
[ -n "$B" ] && show no
[ -z "$B" ] && show empty || show no
test $A != ppo && show test
if ! [ "$A" = x ]; then show not; fi
[[ ! ( $A == b || $A == c ) ]] && show grouped
case $A in ppo|x) show no;; gr?o) show case;; *) show no;; esac
case "$B" in "") show none;; esac
if false; then show no; fi
if ((3 > 2)); then show arith; fi
[ "$A" = grpo -a 1 -lt 2 ] && show old-and
