show before
if [ -n "" ]; then exit 1; fi
show between
exit 0
show never
