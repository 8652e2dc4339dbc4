"""An HTTP service that runs Python snippets, each in a fresh process with limits."""

__version__ = "0.1.0"
