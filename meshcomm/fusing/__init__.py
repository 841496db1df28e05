"""Functions of elementwise operations that go over their operands once, in pieces that stay in the cache."""
