"""Measures pteron beside the executorch wheel and eager PyTorch: ``python -m bench``."""
