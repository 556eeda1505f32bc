"""Bytes to tables: the only package that knows byte offsets. It never imports torch."""
