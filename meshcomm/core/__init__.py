"""What all features stand on: layouts, plans, ranks, memory, transport, and tensors that move. All proofs are here."""
