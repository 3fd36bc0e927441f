"""One module a command: its flags and help. What a command needs is imported when it runs, to keep ``--help`` quick."""
