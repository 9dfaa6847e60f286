bash -c 'show inner "$1" $0' zero one
X=5; eval "show evaled \$X"
bash <<EOF
show from document $X
EOF
export Y=3
bash -c 'show $Y'
