"""Boosted trees across parties: one `grow` over any source of sums, and the protocol that brings sums together.

    bins            a party's columns as codes of bins; how many bins a column has is public, the rest is private
    losses          gradients and hessians as whole numbers, so that sums are exact wherever they are added up
    splits          which split gains most, and the rule for ties
    grow            one tree from sums; the same whole numbers give the same tree
    boosting        one tree after the other: samples of rows, scores, when to stop

    messages        what crosses
    protocol        one tree, both roles
    hinted_sums     sums under hinted RLWE, both halves; paillier_sums the same under Paillier
    sides           which rows of a node go to the left, by oblivious transfer
    hidden          the best splits on shares of sums; hidden_lines the same over lines
    noise           what a feature party adds to sums
    budgets         how many sums and sides the label party may learn
    prediction      rows down all trees, both roles
    estimator       SecureBoostClassifier and SecureBoostRegressor
    storage, text   trees as arrays, and in words
    record          what the label party saw, for an audit

Numbers of bins, kinds of columns and the chosen splits are all that parties tell each other in the clear.
"""
