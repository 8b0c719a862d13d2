"""Callbacks for training frameworks: `integrations.lightning` and `integrations.transformers`.

Import the one you use; each needs the framework of its name.
"""
