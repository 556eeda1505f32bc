"""What a program says, without running it: nothing is allocated and torch is never imported."""
