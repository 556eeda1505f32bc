"""Data loaders of one's own, as ``executorch.extension.pybindings.data_loader`` has them."""

from __future__ import annotations

from abc import abstractmethod

__all__ = ["PyDataLoader"]


class PyDataLoader:
    """Base of what gives a program's bytes: derive from it and implement both methods."""

    @abstractmethod
    def load(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes from ``offset`` on."""
        raise NotImplementedError

    @abstractmethod
    def size(self) -> int:
        """Return how many bytes there are."""
        raise NotImplementedError
