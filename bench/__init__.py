"""Measures pteron beside the executorch wheel and eager PyTorch, in one run: ``python -m bench``."""
