#!/usr/bin/env bash
# Makes the model inside the program again, from nothing: texts, tokenizer, pretraining, fine-tuning, GGUF.
# Usage: tools/make_embedded_model.sh FOLDER [PROGRAM]; a second call goes on where the first was stopped.
set -euo pipefail
folder=${1:?"usage: tools/make_embedded_model.sh FOLDER [PROGRAM]"}
attend=$(realpath "${2:-build/bin/attend}")
mkdir -p "$folder"
cd "$folder"

[ -f stories.jsonl ] || "$attend" corpus stories -n 80000 --seed 1 -o stories.jsonl
[ -f chats.jsonl ] || "$attend" corpus stories -n 40000 --seed 2 --format chat -o chats.jsonl
[ -d tokenizer ] || "$attend" train tokenizer stories.jsonl chats.jsonl -o tokenizer --vocabulary 2048
[ -d stories ] || "$attend" prepare stories.jsonl -o stories --tokenizer tokenizer
[ -d chats ] || "$attend" prepare chats.jsonl -o chats --tokenizer tokenizer

# train RUN STAGE ...: anew, or on from its checkpoint.
train() {
  local run=$1
  shift
  if [ -f "$run/checkpoint.safetensors" ]; then
    "$attend" train resume "$run"
  else
    "$attend" train "$@" -o "$run"
  fi
}
train pretrain pretrain stories --shape storyteller --length 512 --batch 4 --steps 4200 --rate 0.002 --last-rate 0.05
train chat sft chats --start pretrain --length 512 --batch 4 --steps 1500 --rate 0.001 --last-rate 0.02
"$attend" export chat storyteller.gguf --type q8_0 --force
echo "$folder/storyteller.gguf"
