"""The scheduler: a deterministic core, the journal that makes it durable, and the worlds it runs in."""
