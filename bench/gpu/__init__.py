"""Benchmarks on a GPU: see ``bench/gpu/run.py``."""
