"""Checks of launchers on real clusters of one machine: sshd in network namespaces, and Slurm.

`scripts/cluster_check` runs them. `debian` unpacks the programs, `hosts` starts sshd, `ssh` has the
kill matrix over ssh, `slurm` has jobs of Slurm, and `startup` measures the start of a job.
"""
