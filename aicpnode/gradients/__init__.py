"""From a local pseudo-gradient to one bit-identical update on every node. No torch in here.

Reading order: ``state`` (the model as agreed integers and float bits), ``proposal`` (what a node offers),
``judge`` (checks on what others offer), ``round`` (the protocol of one round, pure), ``packages`` and ``residual``
(what is kept on disk), ``participant`` (the trio shell around them: all that a lightweight node runs).
"""
