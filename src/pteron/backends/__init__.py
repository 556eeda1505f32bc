"""Delegate ids to compiled blobs that run."""
