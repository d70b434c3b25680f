"""Messages of the protocol to values of the core and back. No decisions."""
