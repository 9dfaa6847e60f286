for i in 1 2 {3..5}; do show $i; done
for ((i=0; i<3; i++)); do [ $i -eq 1 ] && continue; show c $i; done
X="a b"
for w in $X "c d"; do show "$w"; done
k=0
while [ $k -lt 2 ]; do show while $k; k=$((k+1)); done
until ((k>=4)); do ((k++)); if [[ $k == 4 ]]; then break; fi; show until $k; done
for s in $(seq 2 4); do show seq $s; done
