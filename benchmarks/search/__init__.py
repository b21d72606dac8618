"""Search algorithms with and without speculation: Tables 5, 6, 7 and 9 in small (docs/benchmarks-search.md)."""
