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
[ -f talks.jsonl ] || "$attend" corpus stories -n 20000 --seed 2 --format chat -o talks.jsonl
[ -f exercises.jsonl ] || "$attend" corpus stories -n 30000 --seed 4 --format exercises -o exercises.jsonl
[ -f talks2.jsonl ] || "$attend" corpus stories -n 24000 --seed 5 --format chat -o talks2.jsonl
[ -f exercises2.jsonl ] || "$attend" corpus stories -n 16000 --seed 6 --format exercises -o exercises2.jsonl
[ -d tokenizer ] || "$attend" train tokenizer stories.jsonl chats.jsonl -o tokenizer --vocabulary 2048
[ -d stories ] || "$attend" prepare stories.jsonl -o stories --tokenizer tokenizer
[ -d talks ] || "$attend" prepare talks.jsonl exercises.jsonl -o talks --tokenizer tokenizer
[ -d talks2 ] || "$attend" prepare talks2.jsonl exercises2.jsonl -o talks2 --tokenizer tokenizer

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
rows="--length 512 --batch 4"
# shellcheck disable=SC2086
train pretrain pretrain stories --shape storyteller $rows --steps 4200 --rate 0.002 --last-rate 0.05 \
  --validate-tokens 32768 --validate-every 300
# shellcheck disable=SC2086
train chat sft talks --start pretrain $rows --steps 1000 --rate 0.002 --last-rate 0.02 \
  --validate-tokens 16384 --validate-every 200 --sample-tokens 0
# shellcheck disable=SC2086
train chat2 sft talks --start chat $rows --steps 600 --rate 0.0012 --last-rate 0.02 --seed 2 \
  --validate-tokens 16384 --validate-every 200 --sample-tokens 0
# shellcheck disable=SC2086
train chat3 sft talks2 --start chat2 $rows --steps 2400 --rate 0.0014 --last-rate 0.02 --seed 5 \
  --validate-tokens 16384 --validate-every 200 --sample-tokens 0
# shellcheck disable=SC2086
train chat4 sft talks2 --start chat3 $rows --steps 2400 --rate 0.0014 --last-rate 0.01 --seed 6 \
  --validate-tokens 16384 --validate-every 200 --sample-tokens 0
"$attend" export chat4 storyteller.gguf --type q8_0 --force
echo "$folder/storyteller.gguf"
