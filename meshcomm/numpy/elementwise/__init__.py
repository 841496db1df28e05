"""Functions that compute each element by itself, and how their operands come together."""
