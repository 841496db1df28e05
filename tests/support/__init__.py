"""What tests share: oracles, strategies, random cases, ranks in one process, jobs, and the plugins of the harness."""
