"""Reports on cuts and on folders. Imports no torch.

`verify` checks a folder, `cut_report` counts remote rows, and `comparison` compares methods.
`cut_graph` has the graph after a cut, which the other two count.
"""
