"""A backend with its business logic cut out, and faults to order."""
