"""NumPy's verbs on tensors, and their gradients."""
