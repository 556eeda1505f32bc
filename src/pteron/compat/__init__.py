"""Code that was written for other runtimes, on pteron."""
