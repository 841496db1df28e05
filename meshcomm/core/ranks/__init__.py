"""Who runs, and do they agree: worlds, communicators, hosts, collective calls, the end of a job."""
