"""What looks at programs: the command, pictures of layouts and plans, counts and traces."""
