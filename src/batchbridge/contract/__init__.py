"""The contract that an adapter fulfils, what travels between it and everybody else, and how plugins are found."""
