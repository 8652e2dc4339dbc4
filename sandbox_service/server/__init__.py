"""The service's own process: lanes, queue, control groups, HTTP."""
