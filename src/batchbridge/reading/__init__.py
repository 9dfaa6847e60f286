"""The way from a user's input to a `Reading`: files, launch scripts, arguments."""
