"""One job, done by our broker, by a bare floor, and by peers: hosts report, a hub keeps the newest report of
every host and streams every change to one consumer that mirrors it and can fetch the whole.

All hosts report from one process, each on a connection of its own, in frames that were encoded beforehand:
no client library is measured. `publisher` and `consumer` are processes, `hubs` says what each hub speaks,
`run` joins them. A run counts only if nothing was lost and the snapshot equals the mirror.
"""
