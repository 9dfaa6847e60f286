J='{"a": 1, "b": [1, 2]}'
show "$J" $J '--x={"k": "v"}' key='{a: [1,2]}' "quo\"te" 'it'\''s' $'tab\there' "a\
b" a\
b
show +trainer.x=1 ++a.b=2 ~c "d=[e,f]" 'g={h:1}' i=[j,k] "\${not}" \$not "`echo back tick`" "a'b" 'a"b'
show "trainer.logger=['console','wandb']" trainer.logger=['console','wandb'] data.files="['/a/b','/c']"
show a"b c"d'e f'g "" '' --empty= --quoted="" -- -- -
show "${J//\"/}" "${J%%:*}"
show \# a#b # comment
show 'multi
line' "multi
line2"
show [a] {x} {x,} }{ a{1..3}b {} !x x! "!"
