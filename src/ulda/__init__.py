"""Learn an MRI image prior once, from many domains, and adapt it to a new one with a handful of slices."""

__version__ = "0.1.0"
