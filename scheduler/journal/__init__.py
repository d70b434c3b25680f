"""Facts made durable, and read back."""
