"""Looking at a program and at a run."""
