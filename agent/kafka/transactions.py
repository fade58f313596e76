"""What a transactional producer is told: transactions are not served.

Promises a code that the client takes as final, so that a transactional producer stops at its first call instead of
retrying for ever. That call is FindCoordinator, whose answer has room for a message:
- From version 4 on (Java, franz-go) clients show that message, or the code's own text, for any code but a few. These
  few they take for a missing authorization.
- Clients of older versions (librdkafka, KafkaJS) end at a missing authorization alone. librdkafka shows the message.
"""

from typing import Final

from kio.schema.errors import ErrorCode

TRANSACTIONS_REFUSED_CODE: Final = ErrorCode.transactional_id_authorization_failed
NO_TRANSACTIONS_CODE: Final = ErrorCode.unsupported_version
"""For FindCoordinator from version 4 on."""
TRANSACTIONS_REFUSED: Final = "transactions are not available here: configure the producer without a transactional id"
