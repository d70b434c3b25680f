"""Workloads: jobs and their arrival times, their rates on each type of GPU, and the files of both.

trace.py            a job of a trace, and a trace
formats.py          `read_trace`, `write_trace`: any trace file, recognised by its content
throughputs.py      steps per second by job type, GPUs and worker type, alone and in pairs
roofline.py         the table of rates that Gavel ships, computed from a stated model
named.py            workloads by name, without end
published.py        the synthetic workload of the published figures, job for job
generator.py        workloads of your own
time_series.py      capacity and prices over time

Behind them: documents.py reads arbitrary files, intake.py checks and repairs their content, and
tidy_csv.py, original.py, importers.py, throughput_csv.py and throughput_files.py read one format each.
"""
