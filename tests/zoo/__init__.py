"""The networks of the tests, their data, and slow truths to compare with.

plain            chains of layers, random numbers and labels for them
wirings          what a chain does not have: residual, tied, tokens, branches
cases            one network per layer kind and wiring, with data and loss: `CASES`
moves            networks with known function-preserving moves: `NETS`
language_models  tiny models of transformers
losses           losses as a user gives them, and as plain functions: `LOSSES`
dense_problem    the library's estimators on dense matrices
decimal_softmax  softmax curvature in decimals of 80 digits

Dense Hessians and Gauss-Newton matrices, and measures by their definitions, are in
`spiritlevel.testing.references`.
"""
