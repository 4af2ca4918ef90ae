#!/usr/bin/env bash
# Makes the model inside the program again, from nothing: texts, tokenizer, training, GGUF.
# Usage: tools/make_embedded_model.sh FOLDER [PROGRAM]; a second call goes on where the first was stopped.
set -euo pipefail
folder=${1:?"usage: tools/make_embedded_model.sh FOLDER [PROGRAM]"}
attend=$(realpath "${2:-build/bin/attend}")
mkdir -p "$folder"
cd "$folder"

# tell FILE ARGUMENTS...: texts, unless they are there.
tell() {
  [ -f "$1" ] || "$attend" corpus stories "${@:2}" -o "$1"
}
tell stories.jsonl -n 80000 --seed 1
tell chats.jsonl -n 60000 --seed 2 --format chat
tell exercises.jsonl -n 120000 --seed 4 --format exercises
[ -d tokenizer ] || "$attend" train tokenizer stories.jsonl chats.jsonl -o tokenizer --vocabulary 2048
[ -d texts ] || "$attend" prepare stories.jsonl chats.jsonl exercises.jsonl -o texts --tokenizer tokenizer
tell stories2.jsonl -n 15000 --seed 5
tell chats2.jsonl -n 15000 --seed 6 --format chat
tell exercises2_en.jsonl -n 60000 --seed 7 --format exercises --language en
tell exercises2_zh.jsonl -n 20000 --seed 8 --format exercises --language zh
[ -d texts2 ] || "$attend" prepare stories2.jsonl chats2.jsonl exercises2_en.jsonl exercises2_zh.jsonl -o texts2 --tokenizer tokenizer

# Many small steps (docs/design/training.md): of stories every word is learned, of conversations the answers.
# train RUN ARGUMENTS...: anew, or on from its checkpoint.
train() {
  if [ -f "$1/checkpoint.safetensors" ]; then
    "$attend" train resume "$1"
  else
    "$attend" train pretrain "${@:2}" -o "$1" --length 512 --batch 2 --last-rate 0.02 --validate-tokens 32768 --sample-tokens 0
  fi
}
train run texts --shape storyteller --steps 40000 --rate 0.002 --validate-every 2000
# What is said and asked in English takes longer to learn: more of that.
train run2 texts2 --start run --steps 15000 --rate 0.001 --beta2 0.99 --seed 2 --validate-every 1000
"$attend" export run2 storyteller.gguf --type q8_0 --force
echo "$folder/storyteller.gguf"
