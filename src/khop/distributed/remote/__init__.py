"""Graph servers apart from trainers, and the clients that ask them for batches."""
