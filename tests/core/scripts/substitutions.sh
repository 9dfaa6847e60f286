A=$(echo one two)
show "$A" $A `echo back` "$(echo "in $(echo deep)")"
