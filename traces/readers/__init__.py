"""Readers of single file formats: traces, throughput tables and plans; and the writers of traces."""
