list=a,b,,c
items=(1 2 3)
layers=$(IFS=,; echo "${items[*]}")
show $layers "${items[*]}"
OLD=$IFS
IFS=,
for i in $list; do show "[$i]"; done
parts=($list)
set -- x y
joined=$*
together=${items[*]}
show ${#parts[@]} "${parts[@]}" "$*" "$@"
IFS=$OLD
show $list "$joined" "$together" "$*"
IFS=': '
path='a: b::c '
show $path
unset IFS
show a:b $path
