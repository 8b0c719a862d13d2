"""How a run can end, besides at a level of training or by a rule, which go by their own names."""

from __future__ import annotations

ALL_EPOCHS = "epochs"  # nothing ended its training before
DIVERGED = "diverged"  # its loss is not finite, and it has no measures
MEASURED = "measured"  # it was trained elsewhere
TASK_DONE = "done"  # a task ended that names no other outcome
