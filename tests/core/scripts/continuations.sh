show a \
  b \
  --c=1\
2 \
  d
