"""The zone a client says it is in, by its `client.id` (docs/design/zones.md#the-choice-of-an-agent).

`tidelog_zone=a` anywhere in the id, set apart by one of `,;&|` or white space; the spellings that clients of other
diskless logs already use mean the same: `diskless_az=`, `ws_az=`, `warpstream_az=`. The first one found counts.
"""

import re
from functools import lru_cache

_ZONE = re.compile(
    r"(?:^|[,;&|\s])(?:tidelog_zone|diskless_az|ws_az|warpstream_az)=([A-Za-z0-9._-]{1,64})(?![A-Za-z0-9._-])"
)


@lru_cache(maxsize=4096)
def zone_of_client(client_id: str | None) -> str | None:
    found = _ZONE.search(client_id or "")
    return found.group(1) if found else None
