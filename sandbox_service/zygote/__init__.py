"""The warm processes: a template with everything imported, its lanes, and a child of a lane for every snippet."""
