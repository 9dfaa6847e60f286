A=1; unset A; show "x${A:-gone}" "$A"
