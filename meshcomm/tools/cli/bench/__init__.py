"""``python -m meshcomm bench``: how fast operations are here, beside a reference, and whether they are right."""
