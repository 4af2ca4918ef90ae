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
tell stories1.jsonl -n 10000 --seed 11
tell chats1.jsonl -n 12000 --seed 12 --format chat
tell exercises1.jsonl -n 70000 --seed 13 --format easy
tell stories2.jsonl -n 50000 --seed 21
tell chats2.jsonl -n 60000 --seed 22 --format chat
tell exercises2.jsonl -n 170000 --seed 23 --format exercises
[ -d tokenizer ] || "$attend" train tokenizer stories2.jsonl chats2.jsonl -o tokenizer --vocabulary 2048
for n in 1 2; do
  [ -d "texts$n" ] || "$attend" prepare stories$n.jsonl chats$n.jsonl exercises$n.jsonl -o "texts$n" --tokenizer tokenizer
done

# Many small steps (docs/design/training.md): of stories every word is learned, of conversations the answers.
# train N ARGUMENTS...: run N on texts N, anew, or on from its checkpoint.
train() {
  if [ -f "run$1/checkpoint.safetensors" ]; then
    "$attend" train resume "run$1"
  else
    "$attend" train pretrain "texts$1" -o "run$1" --length 512 --batch 2 --beta2 0.99 --seed "$1" --validate-tokens 32768 \
      --sample-tokens 0 "${@:2}"
  fi
}
# First with little to remember.
train 1 --shape storyteller --steps 8000 --rate 0.002 --last-rate 1 --validate-every 2000
train 2 --start run1 --steps 32000 --rate 0.002 --last-rate 0.02 --validate-every 2000
"$attend" export run2 storyteller.gguf --type q8_0 --force
echo "$folder/storyteller.gguf"
