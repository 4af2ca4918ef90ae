"""A language model: open it, ask it, print the answer as it grows.

usage: language_model.py MODEL QUESTION; MODEL is a pulled model's name, a .gguf or .pth file, or a Hugging Face folder
"""

import sys

from attend import llm

if len(sys.argv) != 3:
    sys.exit("usage: language_model.py MODEL QUESTION")
model = llm.Model(sys.argv[1])
if model.tokenizer.chat_template:
    pieces = model.stream_chat([{"role": "user", "content": sys.argv[2]}], max_tokens=64)
else:  # made to continue text
    pieces = model.stream(sys.argv[2], max_tokens=64)
for piece in pieces:
    print(piece, end="", flush=True)
print()
