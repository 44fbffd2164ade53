"""What became of a measurement over the nights: where a series changed its level."""
