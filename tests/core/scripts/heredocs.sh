cat <<EOF > /dev/null
show not this $X
EOF
T=$(cat <<'EOF'
plain $X "q"
EOF
)
show "$T" after
U=$(cat <<EOF
sum $((1+1))
EOF
)
show "$U"
