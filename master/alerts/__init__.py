"""Tells those without a Prometheus what has changed: state changes, posted to a webhook as JSON."""
