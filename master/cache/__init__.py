"""Sessions, devices and warm data, and the broker that fetches them."""
