"""Bodies of the subcommands; each module is imported when its command is used."""
