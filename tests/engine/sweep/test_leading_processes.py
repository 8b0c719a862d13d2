"""Leading columns in two processes, which choose the same ones and have the numbers of one."""

import json

from forked import needs_gloo, run_in_two_processes, run_script
from model.reports import same_numbers

IN_PROCESSES = """
import json, os, pathlib, sys, torch, torch.distributed as dist, spiritlevel as sl
from torch import nn

several = "RANK" in os.environ
rank = int(os.environ.get("RANK", 0))
if several:
    dist.init_process_group("gloo")
torch.manual_seed(0)
layers = [nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 30)]
model = nn.Sequential(*layers).double().eval()
x, y = torch.randn(23, 6).double(), torch.randint(30, (23,))
optimizer = torch.optim.Adam(model.parameters(), 0.02)
for _ in range(300):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
found = {}
for cut in (15, 0):
    part = slice(None) if not several else (slice(0, cut), slice(cut, None))[rank]
    data = [b for b in zip(x[part].split(4), y[part].split(4)) if len(b[0])]
    names = ["curvature.trace", "relative.kappa", "neuron.rho_sum"]
    report = sl.measure(model, data, measures=names, method="output_probes", rtol=0.01)
    found[cut] = json.loads(report.to_json())
pathlib.Path(f"{sys.argv[1]}.{rank}").write_text(json.dumps(found))
if several:
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # a thread of gloo's sometimes aborts a process that ends in the usual way
"""


@needs_gloo
def test_two_processes_equal_one(tmp_path):
    script = tmp_path / "measure.py"
    script.write_text(IN_PROCESSES)
    run_in_two_processes(script, tmp_path / "two")
    run_script(script, tmp_path / "one")
    alone = json.loads((tmp_path / "one.0").read_text())
    for rank in range(2):
        together = json.loads((tmp_path / f"two.{rank}").read_text())
        for cut in ("15", "0"):  # unequal parts, and one without data
            assert together[cut]["settings"]["processes"] == 2
            same_numbers(together[cut], alone[cut], keys=("value", "stderr", "data_stderr"))
            for name, one in alone[cut]["measures"].items():
                assert "leading column" in one["text"]
                assert together[cut]["measures"][name]["text"] == one["text"]
