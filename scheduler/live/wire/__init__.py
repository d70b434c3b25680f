"""Conversion between messages of the protocol and values of the core. No decisions."""
