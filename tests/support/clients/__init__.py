"""Suites of tests that others wrote, one module each: support.client_suites runs them."""
