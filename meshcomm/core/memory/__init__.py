"""The bytes of this process and of this node: pools, scratch memory, copies, exchanges in shared memory."""
