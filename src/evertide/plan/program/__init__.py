"""Scripts and projects as plain values: statements, tables, views, flows, properties, and the catalog."""
