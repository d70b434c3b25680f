"""The web gateway: pages, REST and server-sent events over the protocol; a client of the scheduler like any other."""
