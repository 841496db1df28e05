"""What a program does with its ranks: counted, and traced in time."""
