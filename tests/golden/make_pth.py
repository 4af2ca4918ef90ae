"""Makes tiny.pth with PyTorch: a checkpoint as training loops save them. Usage: make_pth.py FILE"""

import collections
import sys

import torch


def counted(*shape, dtype):
    return torch.arange(int(torch.tensor(shape).prod()), dtype=torch.float32).reshape(shape).to(dtype)


def main():
    weight = counted(5, 4, dtype=torch.float16)
    state = collections.OrderedDict()
    state["embed.weight"] = weight
    state["head.weight"] = weight  # tied
    state["rows.weight"] = counted(6, 3, dtype=torch.float32)[2:5]  # an offset into its storage
    state["norm.weight"] = torch.nn.Parameter(counted(3, dtype=torch.bfloat16))
    state["steps"] = torch.tensor(7)  # no dimensions, int64
    state["none"] = torch.zeros(0, 4)
    state._metadata = {"": {"version": 1}}
    groups = [{"lr": 1e-3, "betas": (0.9, 0.95), "params": [0, 1]}]
    moments = {0: {"exp_avg": torch.zeros(2)}}
    torch.save({"epoch": 3, "big": 2**70, "negative": -5, "dtype": torch.float16, "size": torch.Size([1, 2]),
                "model": state, "optimizer": {"state": moments, "param_groups": groups}}, sys.argv[1])


if __name__ == "__main__":
    main()
