"""What commands share at their edges: options, documents, tables, wording, progress, the session with a scheduler."""
