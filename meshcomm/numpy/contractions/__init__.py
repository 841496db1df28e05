"""Products of tensors, and the plans of einsum."""
