"""Where each buffer of a program lives, and who owns it."""
