"""Looks at all nodes before anything is launched: real sockets, real versions, every finding at once.

`conduct` asks the nodes; what runs on them is in `node/`, travels as text and tells only what there
is; what that means for a plan is judged in `judge`, `agree` and `routes`, which are pure.
"""
