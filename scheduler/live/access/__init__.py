"""Access control: TLS, tokens, roles, limits, the audit log. Nothing here depends on what a call does."""
