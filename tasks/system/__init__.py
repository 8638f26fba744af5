"""Access to the machine, and the removal of secrets from texts. Imports nothing of this project but `errors`."""
