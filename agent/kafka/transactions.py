"""What a transactional producer is told: transactions are not served.

The code is one that every client takes as final, so that a transactional producer stops at its first call instead of
retrying for ever.
"""

from typing import Final

from kio.schema.errors import ErrorCode

TRANSACTIONS_REFUSED_CODE: Final = ErrorCode.transactional_id_authorization_failed
TRANSACTIONS_REFUSED: Final = "transactions are not available here: configure the producer without a transactional id"
