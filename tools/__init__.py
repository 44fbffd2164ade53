"""What the project runs on itself: benchmarks, pictures, derived tables."""
