"""One shot: a feature party sends one embedding, sets how much of it may be rebuilt, and is sent nothing."""

from colonnade import Roles, simulate
from colonnade.data import load, train_test_split
from colonnade.errors import LeakBudgetSpent
from colonnade.experiment.quality import quality
from colonnade.models import OneShotClassifier, SplitClassifier

train, test = train_test_split(load("digits").split())
roles = Roles(label="bank", features=("shop",))

split = simulate(SplitClassifier().fit, train, roles=roles)
print(f"A split network predicts {quality(split, test)['accuracy']:.1%} of the held-out rows correctly.")
for components in (32, 16, 8, 4):
    try:
        run = simulate(OneShotClassifier(components=components, leak_budget={"shop": 0.97}).fit, train, roles=roles)
    except LeakBudgetSpent as refused:
        print(f"{components} components: {refused}")
        continue
    accuracy, leak = quality(run, test)["accuracy"], run.results["shop"].leak_
    received = [entry for entry in run.transcripts["shop"].entries if not entry.sent]
    print(f"{components} components: {accuracy:.1%} correct; shop received {len(received)} messages; {leak}.")
