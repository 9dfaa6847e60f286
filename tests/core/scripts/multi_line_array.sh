A=(
  data.x=1   # a comment
  "data.y=2 3"
)
show "${A[@]}" \
  last=1
