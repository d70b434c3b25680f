"""Workloads: what arrives when, how fast it runs where, and the files that both are kept in.

trace.py         a job of a trace, and a trace
throughputs.py   steps per second by job type, GPUs and worker type, alone and in pairs
formats.py       `read_trace`, `write_trace`: any trace file, recognised by its content
published.py     the synthetic workload of the published figures, job for job
generator.py     workloads of one's own, and all of them by name
roofline.py      the table of rates that Gavel brings along, computed from a stated model
"""
