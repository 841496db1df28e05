"""What other libraries are told about tensors; loaded only when the other library is."""
