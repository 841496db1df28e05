"""Formats of files: each says where the bytes of arrays are, and knows how to make and to complete its files."""
