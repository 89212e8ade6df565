"""Bytes, keys and sockets between programs: the only room that imports zmq.

`codec.py` turns bytes into messages and back; `keys.py` keeps CURVE keys in files; `dealer.py` is the one end
of a link, `router.py` with `zap.py` the broker's; `ending.py` is where a command's output has no reader any
more. Nothing here knows what a message means.
"""
