"""The state machine: messages in; facts and effects out. No clock, no files, no threads, no random numbers."""
