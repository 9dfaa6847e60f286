P=/a/b/model.tar.gz
show ${P##*/} ${P#*/} ${P%.*} ${P%%.*} ${P/a/x} ${P//a/x} ${P:3:5} ${P: -2} ${#P} ${P^^} ${P/%x/y}
N=P; show ${!N} "${P##*.}"
