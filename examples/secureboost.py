"""Three parties grow one forest, see what each of them holds of it, and predict together."""

from colonnade import Roles, simulate
from colonnade.data import load, train_test_split
from colonnade.models import SecureBoostClassifier

train, test = train_test_split(load("bank-shop-telco", rows=2000).split(), test=0.25, seed=0)
roles = Roles(label="bank", features=("shop", "telco"))

# The owners of the columns allow a tenth of a sum for each row; by default 1,500 rows allow for no tree at all.
for sums, leak_budget in (("exact", 0.1), ("hidden", 0.01)):
    model = SecureBoostClassifier(n_estimators=5, max_depth=3, max_bin=16, sums=sums, leak_budget=leak_budget)
    run = simulate(model.fit, train, roles=roles, seed=1)
    scores = simulate({name: share.score for name, share in run.results.items()}, test, roles=roles).results
    sent = sum(entry.size for transcript in run.transcripts.values() for entry in transcript.entries if entry.sent)
    print(f"With {sums} sums, {scores['bank']:.1%} of the held-out rows are right; {sent / 1e6:.0f} MB were sent.")

bank, shop = run.results["bank"], run.results["shop"]
print("Importances at the bank:", {name: round(share, 3) for name, share in bank.feature_importances_.items() if share})
print("The first tree at the bank:", bank.text().split("tree 1")[0], sep="\n")
print("The shop's splits:", shop.text(), sep="\n")
