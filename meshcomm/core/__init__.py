"""The base of all features: layouts, plans, ranks, memory, transport, and tensors that move. All proofs are here."""
