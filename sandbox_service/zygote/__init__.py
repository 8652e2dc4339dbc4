"""The warm processes: a template with all imports done, its lanes, a child of a lane for each snippet."""
