"""The journal: facts made durable, and read back."""
