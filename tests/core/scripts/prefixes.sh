A=1 show prefixed
A=2; A=3 show "$A"; show $A
export B=b C="c c"; show "$B" "$C"
f() { show "in f" "$V"; }
V=given f; show "${V:-restored}"
declare D=d; typeset T=t; show $D $T
A=x B=y; show $A$B
env E=1 true; show end
