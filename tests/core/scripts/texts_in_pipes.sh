export CUDA_VISIBLE_DEVICES=0,1,3
show $(echo $CUDA_VISIBLE_DEVICES | awk -F',' '{print NF}') $(echo $CUDA_VISIBLE_DEVICES | awk -F, '{ print NF }')
show $(echo "$CUDA_VISIBLE_DEVICES" | tr ',' '\n' | wc -l) $(echo $CUDA_VISIBLE_DEVICES | tr , ' ' | wc -w)
show $(awk -F, '{print NF}' <<< "$CUDA_VISIBLE_DEVICES") $(tr ',' '\n' <<< "$CUDA_VISIBLE_DEVICES" | wc -l)
show $(( $(echo $CUDA_VISIBLE_DEVICES | tr -cd ',' | wc -c) + 1 )) $(( $(echo $CUDA_VISIBLE_DEVICES | grep -o ',' | wc -l) + 1 ))
show "$(echo "True" | tr "[:upper:]" "[:lower:]")" "$(echo aBc | tr a-z A-Z)" "$(echo r2d2 | tr -cd 0-9)" "$(echo 12a | tr -d "[:digit:]")"
show $(echo -n "$CUDA_VISIBLE_DEVICES" | tr ',' '\n' | wc -l) "$(echo abc | tr -d b)" $(echo 0 | awk -F, '{print NF}')
show "$(echo "a b  c" | awk '{print NF}')" "$(echo abcd | tr bcd xy)" "$(echo -n | wc -l)" "$(echo | awk '{print NF}')"
IFS=',' read -ra DEVICES <<< "$CUDA_VISIBLE_DEVICES"
show ${#DEVICES[@]} "${DEVICES[@]}"
IFS=, read -r -a DEVICES <<< "5"
show ${#DEVICES[@]} "${DEVICES[2]-none}"
echo "show from a pipe" | bash
X=outside
cat <<EOF | bash
show in a document $X
EOF
cat <<'EOF' | tr x y | bash -s
show xx
EOF
bash <<< "show here; show $X"
bash <<EOF 2>&1 | tee /dev/null
show piped on
EOF
echo "show never" | cat > /dev/null
echo one | while read x; do show "turn"; done
true | show at the end | true && show and on
