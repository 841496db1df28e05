"""Adapters that teach other libraries about tensors; each is loaded only with its library."""
