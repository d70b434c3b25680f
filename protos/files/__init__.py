"""Files that users write: YAML 1.2, settings, typed values. One code for client, scheduler and agent."""
