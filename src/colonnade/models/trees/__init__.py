"""Boosted trees across parties: bins, losses, splits, and one `grow` over any source of sums.

    bins      a party's columns as codes of bins; how many bins a column has is public, the rest is private
    losses    gradients and hessians as whole numbers, so that sums are exact wherever they are added up
    splits    which split gains most, and the rule for ties
    grow      one tree from sums; the same whole numbers give the same tree
    sides     which rows of a node go to the left, by oblivious transfer
    hidden    the best splits where sums stay secret shares, and nothing but these splits is opened
    record    what the label party saw of a forest, for audits

What a protocol has to call, with the hinted scheme (`crypto.hinted`) as the source of a feature party's sums:

    label party                                        feature party
    once       joint_seed, PublicMatrix                joint_seed, PublicMatrix
               Reader(hint) for each feature party     Holder(HistogramBins(codes, widths), budget, folder).hint()
               Chooser                                 Sender
    ahead      Queries.prepare(count, readers)  ---->  Holder.prepare(keys)
               Queries.pad, Chooser.extend      ---->  Sender.extend
    a tree     Messages(g, h)
      sums     Queries.ask(places), to all      ---->  Holder.answer(query)      or  Holder.share(query)
               Reader.read(answer)              <----
               fills in the last bin of each column: the node's total less the others
      left     the chosen splits                ---->  serve_sides
               fetch_sides

Where sums are hidden, `Holder.share` and `Reader.share` give both sides shares of them, and besides

    once       begin_first                      <--->  begin_second, with each feature party
    ahead      fill_first(needed_for_tree)      <--->  fill_second
    a tree     HiddenChooser, as grow's chooser        HiddenShares
      sums     filled(Reader.share, totals)            Holder.share
      choice   HiddenChooser takes its turns    <--->  HiddenShares.rank; others send the result to the first one
                                                       HiddenShares.decide, the first feature party only

`Gradients.of` takes `Slots.of(n_rows).most_total`, or `hidden.MOST_TOTAL`, in centralised runs too where these are to
be equal; parameters of trees with hidden sums go through `hidden_parameters`. The budget of a
`Holder` takes `PublicMatrix.most_values`. Numbers of bins, kinds of columns and the chosen splits are all that parties
tell each other in the clear.
"""
