launch() { show "$@"; }
with_defaults() { launch --a 1 "$@" --last; }
rest() { launch "${@:2}" from "$1"; }
joined() { launch "$*" $*; }
outer() { inner() { show inner "$@"; }; inner "$@" x; }
run_all() { for one in "$@"; do launch run "$one"; done; }
with_defaults --b "two words" ""
rest first second "third one"
joined a "b c"
outer p q
run_all 1 "2 3"
chain() { "$@"; }
chain show through "a b"
env_like() { local name=$1; shift; show "$name" $# "${@}"; }
env_like n 1 2
