#!/usr/bin/env bash
# Makes the model inside the program again, from nothing: texts, tokenizer, training, GGUF.
# Usage: tools/make_embedded_model.sh FOLDER [PROGRAM]; a second call goes on where the first was stopped.
set -euo pipefail
folder=${1:?"usage: tools/make_embedded_model.sh FOLDER [PROGRAM]"}
attend=$(realpath "${2:-build/bin/attend}")
mkdir -p "$folder"
cd "$folder"

[ -f stories.jsonl ] || "$attend" corpus stories -n 80000 --seed 1 -o stories.jsonl
[ -f chats.jsonl ] || "$attend" corpus stories -n 60000 --seed 2 --format chat -o chats.jsonl
[ -f exercises.jsonl ] || "$attend" corpus stories -n 120000 --seed 4 --format exercises -o exercises.jsonl
[ -d tokenizer ] || "$attend" train tokenizer stories.jsonl chats.jsonl -o tokenizer --vocabulary 2048
[ -d texts ] || "$attend" prepare stories.jsonl chats.jsonl exercises.jsonl -o texts --tokenizer tokenizer

# One run over all of them, once, in many small steps: of stories every word is learned, of conversations the answers.
if [ -f run/checkpoint.safetensors ]; then
  "$attend" train resume run
else
  "$attend" train pretrain texts -o run --shape storyteller --length 512 --batch 4 --steps 20000 --rate 0.002 --last-rate 0.02 \
    --validate-tokens 32768 --validate-every 1000 --sample-tokens 0
fi
"$attend" export run storyteller.gguf --type q8_0 --force
echo "$folder/storyteller.gguf"
