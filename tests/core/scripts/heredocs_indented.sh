X=5
T=$(cat <<-EOF
	tab $X
		two tabs ${X:-0} $((X * 2)) \$X "q" 'q'
	EOF
)
show "$T"
f() { cat > /dev/null; show in function "$1"; }
f one <<EOF
input $X
EOF
cat <<A > /dev/null && show after a
$X
A
show before <<'EOF' last
nothing $X
EOF
cat <<< "a string" > /dev/null; show here string
if true; then
  cat <<EOF > /dev/null
inside $X
EOF
  show inside if
fi
