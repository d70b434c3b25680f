"""Access control: TLS, tokens, roles, limits, the audit log. Nothing here knows what a call does."""
