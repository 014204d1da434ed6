"""Launcher of jobs: `khop run`, and `khop distribute`. Imports no torch.

`hosts` reads lists of hosts, and `job` plans processes. `run` checks, starts and watches a job.
`session` has the connection to a host, `stage` the program that runs there, with `host_checks` and
`ending`. `preflight` compares hosts, and `output` writes lines with their origin. `inside` maps the
variables of a scheduler. `distribute` sends files of a partition folder to `folder_stage` on hosts.
"""
