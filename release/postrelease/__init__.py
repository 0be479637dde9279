"""After a release: the pins that ship are flipped to it, and the `opencoti` wheel is built."""
