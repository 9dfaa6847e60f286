# Options that a script takes itself, and what stands behind them.
gpus=8
set -- -n 4 -fname -q rest --lr 1
while getopts "n:f:q" option; do
  case $option in
    n) gpus=$OPTARG ;;
    f) file=$OPTARG ;;
    q) quiet=1 ;;
    *) exit 1 ;;
  esac
done
shift $((OPTIND - 1))
show "$gpus" "$file" "$quiet" "$@" "$OPTIND"

start() {
  local OPTIND=1 unit=""
  while getopts ":u:" option; do
    case $option in
      u) unit=$OPTARG ;;
      :) show "lacks $OPTARG" ;;
      \?) show "other $OPTARG" ;;
    esac
  done
  show "unit $unit" "$OPTIND"
}
start
start -u a_12
start -u
start -x -u b
start -- -u c
