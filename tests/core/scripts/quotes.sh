show a 'b c' "d $((1+1)) e" f\ g $'h\ti\x41' ""  '' x"y"'z' "a\"b" "\$X \n" \\
