"""The HTTP interfaces: the native one, those of two other systems' clients, and what operators ask for."""
