NAME=模型-é
show data.path=数据/训练.parquet name="$NAME" model=${NAME}中
show $NAME§ {甲,乙}.parquet {1..2}中 ${NAME%-é} ${NAME/模型/x} 'ü ß' "全角　空格" a　b a b
for word in 一 二; do show trainer.name=$word; done
show x{𢡆 {3𢡆 {𢡆..4}
A=(α "β γ")
show "${A[@]}" ${#A[@]}
cat <<EOF
不是命令
EOF
show end
