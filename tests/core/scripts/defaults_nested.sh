: ${SIZE:=32}
: "${NAME:=two words}"
show $SIZE "$NAME" ${UNSET-} "${UNSET-}" "${UNSET:-}" end
show ${A:-${B:-$((1 + 1))}} "${A:-"${B:-x y}"}" ${A:-$(echo s u)} ${A:-'q q'} ${A:-a\ b}
show --n=${N:-8} --m="${M:-}" --p=${P:-"a b"}c ${SIZE:+--size=$SIZE} ${Q:+--q}
D=${DIR:-~/x}; case $D in */x) show home;; esac
X=${X:-{a,b}}; show "$X"
show "${L:-[1,2]}" ${L:-key=value} ${L:-a=1,b=2}
readonly R=${R:-7}; show $R
export T=${T:-3} U=${U:-"4 5"}; show $T "$U"
