"""What two or more of meguri's services need, and nothing else."""
