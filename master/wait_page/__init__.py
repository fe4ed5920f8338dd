"""The waiting page: the virtual queue for people with a browser, served by the gateway. Pure but for its files."""
