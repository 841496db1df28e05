"""Missing ranks: who they are, the end of a job that waits for them, and the last calls of each rank."""
