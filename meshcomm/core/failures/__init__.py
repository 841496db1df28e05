"""What ranks do when others do not come: who is missing, the end of a job, and what each rank did last."""
