"""A prompt, and a kernel for Jupyter, whose cells run on all ranks."""
