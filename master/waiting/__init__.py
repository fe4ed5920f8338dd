"""The virtual queue at work in a master: what lies between its core and clients, backends, the store and the clock."""
