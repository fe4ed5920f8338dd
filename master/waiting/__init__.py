"""The virtual queue as a running master keeps it: what stands between the core of the queue, the pool and the store."""
