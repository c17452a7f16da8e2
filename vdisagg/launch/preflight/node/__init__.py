"""What runs on a node. These files travel as text: the standard library and Python 3.8 are all they know.

They tell what there is and judge nothing; `facts.py` has the answers' shapes.
"""
