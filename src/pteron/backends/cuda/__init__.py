"""Delegates of ExecuTorch's CUDA backend. Importing this does not import torch."""

from pteron.backends.cuda.backend import CudaBackend
from pteron.backends.cuda.describe import NativeCode, describe, violations

__all__ = ["CudaBackend", "NativeCode", "describe", "violations"]
