"""Tables over the store, for the terminal."""
