"""Layouts by name, variables and modules; replicas of logical devices."""
