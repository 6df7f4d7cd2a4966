"""What one process grants by itself is a share of each limit, whoever asks."""

import pytest

from api.limits import Demand, Denied, Granted, Leases
from api.limits_local import LocalShare
from schemas.tiers import MICRO, ORGANISATION, TOKENS, Bucket, Holder

NOW_US = 1_800_000_000 * MICRO
PROMPT, OUTPUT = 30, 104


def demand(account: str, organisation: str | None, *buckets: Bucket) -> Demand:
    return Demand(
        holder=Holder(account, organisation),
        reply_id=f"rep_{account}",
        conversation_id=f"conv_{account}",
        buckets=buckets,
        running_max=10,
        prompt_tokens=PROMPT,
        output_tokens=OUTPUT,
        context_tokens=8_192,
        leases=Leases(door_ms=1, reply_ms=1),
        keep_ms=1,
        before="none",
    )


def test_all_accounts_of_an_organisation_draw_from_its_one_share() -> None:
    share = LocalShare(0.1)
    buckets = (Bucket(TOKENS, 100_000, 100_000), Bucket(ORGANISATION, 3_000, 3_000))
    taken = [share.take(demand(f"acc-{n}", "group", *buckets), NOW_US) for n in range(50)]
    granted = [one for one in taken if isinstance(one, Granted)]
    assert len(granted) == 300 // (PROMPT + OUTPUT)
    assert {one.lacking for one in taken if isinstance(one, Denied)} == {ORGANISATION}
    assert isinstance(share.take(demand("acc-0", "another", *buckets), NOW_US), Granted)


@pytest.mark.parametrize("organisation", ["group", None])
def test_accounts_do_not_draw_from_each_others_share(organisation: str | None) -> None:
    share = LocalShare(0.1)
    bucket = Bucket(TOKENS, 2_000, 2_000)
    first = [share.take(demand("ada", organisation, bucket), NOW_US) for _ in range(2)]
    assert [type(one) for one in first] == [Granted, Denied]
    assert isinstance(share.take(demand("grace", organisation, bucket), NOW_US), Granted)
