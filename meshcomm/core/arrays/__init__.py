"""Distributed tensors, and the verbs that move one."""
