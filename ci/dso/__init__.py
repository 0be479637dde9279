"""Static inspection of executables and shared objects: what they need, offer and give away."""
