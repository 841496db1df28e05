"""The command ``python -m meshcomm``."""
