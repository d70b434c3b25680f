"""Workloads: jobs with their arrival times, the rates of jobs on each type of GPU, and the files that hold these.

trace.py            a job of a trace, and a trace
formats.py          `read_trace`, `write_trace`: any trace file, recognised by its content
throughputs.py      steps per second by job type, GPUs and worker type, alone and in pairs
plans.py            plans of job types: the rates of a model that is split over GPUs
roofline.py         the table of rates that Gavel ships, computed from a stated model
named.py            workloads by name, without end
published.py        the synthetic workload of the published figures (those of the Gavel paper), job for job
generator.py        workloads of your own
time_series.py      capacity and prices over time

The other modules serve these: documents.py reads arbitrary files, intake.py checks and repairs the jobs in them,
throughput_files.py reads throughput tables of any format, and readers/ has a module for each format.
"""
