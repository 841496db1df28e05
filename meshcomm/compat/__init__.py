"""Other systems' names for what meshcomm has."""
