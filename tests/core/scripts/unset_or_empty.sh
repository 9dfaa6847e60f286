x=1
unset x
show "${x-none}" "${x:-empty}" "${#x}"
e=
show "${e-none}" "${e:-empty}" ${e+set}
a=()
show "${a-none}" "${a[@]-none}" ${#a[@]} "${a[@]}"
a[3]=x
show "${a[1]-none}" "${a[3]-none}" ${#a[@]}
f() { local y; show "${y-none}" "${1-none}" "${2-none}"; }
f ""
[[ -v x ]] || show not set
[[ -v e && -v a[3] && ! -v a[0] && ! -v a ]] && show set
show ${new:='a b'} "$new"
