"""How numbers are obtained from a surface: exactly where possible, with an error bar elsewhere."""
