"""What must survive a crash: votes before they are sent, the ledger, blobs, peers.

Reading order: faults (what can go wrong, in the user's words), connection (one durable SQLite connection),
journal (was the write-ahead log damaged?), database (the tables), blobs (content-addressed files), lock.
"""
