"""A method, bound and running."""
