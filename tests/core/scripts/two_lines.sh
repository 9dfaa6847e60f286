a=0 b=0
a=1 b=$((a + 1))
show $a $b

c=3 \
d=4

# not for the program below alone
show $c $d
f() {
  e=5 g=6
  show $e $g
}
f
true a | true b | true '{print $2}' | true kill
show x && show y
x=$a\*$b; show "$x"
y=$a/$b/$c; show $y
show a \ b c\ "d" \ "e" 'f'\ 
show stray \ 
show end
