set -- a b c
show $1 "$@" $#
shift
show $1 $#
set -ex 2>/dev/null; set +x 2>/dev/null
show end
