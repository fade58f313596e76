"""Where the bucket of `tidelog dev` is, for programs that read it themselves. In production these are your
own keys.
"""

import json
import os
from pathlib import Path
from urllib.parse import parse_qs, urlsplit


def stack_store() -> dict[str, str]:
    """As PyIceberg names them: `s3.endpoint`, `s3.access-key-id`, `s3.secret-access-key`. Empty for a local
    folder.
    """
    found = json.loads(Path(os.environ.get("TIDELOG_STACK", ".tidelog/stack.json")).read_text())
    url = urlsplit(found["store_url"])
    if url.scheme != "s3":
        return {}
    [endpoint] = parse_qs(url.query)["endpoint"]
    return {
        "s3.endpoint": endpoint,
        "s3.access-key-id": found["s3_access_key"],
        "s3.secret-access-key": found["s3_secret_key"],
    }
