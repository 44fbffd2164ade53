"""The same doors for programs: a REST API over what the pages use."""
