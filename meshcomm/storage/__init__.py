"""Arrays on disk: tensors are saved from any layout, and loaded into any other."""
