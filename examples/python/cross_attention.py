"""Teaches a small encoder-decoder of Transformers to say sentences backwards, and writes where it looks: the explorer's page.

Needs torch and transformers beside attend; takes some minutes.

usage: python cross_attention.py [page.html]
"""

import sys

import torch
from transformers import BartConfig, BartForConditionalGeneration

import attend.hf

WORDS = "the a small old red cat dog bird girl boy saw took lost found ball box hat tree near under".split()
PAD, BEGIN, END, FIRST = 0, 1, 2, 3
LENGTH, STEPS = 8, 600


def sentences(count):
    """Random words, and the same the other way round."""
    source = torch.randint(FIRST, FIRST + len(WORDS), (count, LENGTH))
    ends = torch.full((count, 1), END)
    return torch.cat([source, ends], 1), torch.cat([source.flip(1), ends], 1)


def texts(ids):
    names = ["<pad>", "<s>", "</s>", *WORDS]
    return [{"text": " " + names[n], **({"special": True} if n < FIRST else {})} for n in ids.tolist()]


attend.hf.register()
torch.manual_seed(1)
config = BartConfig(vocab_size=FIRST + len(WORDS), d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                    decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, max_position_embeddings=32, dropout=0.0,
                    pad_token_id=PAD, bos_token_id=BEGIN, eos_token_id=END, decoder_start_token_id=BEGIN)
model = BartForConditionalGeneration._from_config(config, attn_implementation="attend")
optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
for step in range(STEPS):
    source, target = sentences(64)
    loss = model(input_ids=source, labels=target).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if (step + 1) % 100 == 0:
        print(f"step {step + 1}: loss {loss.item():.4f}", flush=True)

model.eval()
source, target = sentences(1)
asked = torch.cat([torch.full((1, 1), BEGIN), target[:, :-1]], 1)  # what the decoder reads: each word asks for the next one
with torch.no_grad(), attend.hf.watch(model) as watch:
    said = model(input_ids=source, decoder_input_ids=asked).logits.argmax(-1)
print("reads", "".join(t["text"] for t in texts(source[0])))
print("says ", "".join(t["text"] for t in texts(said[0])))
cross = watch.parts()["cross"]
right = LENGTH - 1 - torch.arange(LENGTH)  # where the next word stands
share, layer, head = max((float(cross[l].zoom(h)[range(LENGTH), right].mean()), l, h) for l in range(2) for h in range(4))
print(f"layer {layer}, head {head} of the cross-attention has {100 * share:.0f} % of its weight on the word that comes next")
page = sys.argv[1] if len(sys.argv) > 1 else "cross_attention.html"
with open(page, "w", encoding="utf-8") as file:
    file.write(watch.html(texts(asked[0]), texts(source[0])))
print(f"{page}: open it in a browser; the part in question is “Cross-attention”")
