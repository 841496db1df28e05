"""Pure functions of layouts and a machine: how an array goes from one layout to another."""
