MODEL=models/Qwen2.5-7B-Instruct/
NAME=$(basename "$MODEL")
FILE=/data/train.parquet
for path in a a/b /a / //a a/b/c/ ./x.tar.gz; do
  show "$(basename "$path")" "$(dirname "$path")"
done
show "$NAME" "$(basename "$FILE" .parquet)" "$(basename b b)" "$(dirname "$FILE")/val"
show "run_$(basename "$(dirname "$FILE")")"
