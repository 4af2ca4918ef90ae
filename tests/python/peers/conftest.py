"""Every test against another library starts from the same seed."""

import numpy as np
import pytest
import torch

torch.set_num_threads(1)  # its threads and the engine's would wait for each other on a small machine


@pytest.fixture(autouse=True)
def same_seed():
    torch.manual_seed(0)
    np.random.seed(0)
