show a 2>&1 | cat
show b > /dev/null
show c 2> /dev/null >> /dev/null d=1
(X=2; show sub $X); show after ${X:-none}
{ show group; } 2>/dev/null
show bg & wait
