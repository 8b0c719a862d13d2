"""How close an optimizer's steps are to the edge of stability, and a warning beyond it."""
