"""The trainers of a job: who this process is, who the others are, and steps taken together.

`launch_environment` reads the rank that a launcher gave, `rendezvous` reaches the job's key-value
store, `generation` tells this start of the job from earlier ones in the same store, `barrier` is a
barrier that notices a trainer's end, `context` is this trainer.
"""
