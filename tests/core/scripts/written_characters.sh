show $'a\vb' $'\E[0m' $'\e' $'\?' $'\xe2\x9c\x93' $'\303\251'
show {a..e..2} {e..a..2} {a..c}
show $(echo -E no options) $(echo -nE "x") $(echo -nn y)
