"""Closed forms: tensors in, tensors out; no module, no data, no hidden randomness."""
