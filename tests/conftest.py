import pytest
import torch

# Tests choose their dtype themselves; the thread count is fixed so that sums run in one order.
torch.set_num_threads(1)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)
