a=1
export b=2
export "c=3"
name=d
export "$name=4"
declare -x e=5
bash -c 'show ${a-none} $b $c $d $e'
a=6 bash -c 'show $a'
bash -c 'show "$0" "$@"' _ --flag x -c
bash -e -o pipefail -c 'show $1 $#' zero -x
bash -uc 'show "$@"' -- --y
show ${a} "$d"
bash <<EOF
show $a \$b \${a-none}
EOF
