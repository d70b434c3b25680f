"""Edges that commands share: options, documents, tables, wording, progress, the session with a scheduler."""
