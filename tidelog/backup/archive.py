"""Where the backups of a database lie in the bucket, and the exact commands that Postgres runs to write and
read them.

Promises:
- Backups lie under `<cluster>/postgres-backups/<system identifier>/`. Tidelog's housekeeping deletes nothing
  there.
- Two databases of different origin never share an archive.
- No command holds a secret: the keys are in a file that only Postgres's user may read.

Pure: no I/O.
"""

import shlex
from dataclasses import dataclass
from pathlib import Path

from storage.segments.keys import backups_prefix
from storage.stores.object_store import StoreSettings, StoreUrl

ARCHIVE_PROGRAM = "barman-cloud-wal-archive"
RESTORE_PROGRAM = "barman-cloud-wal-restore"


class NoArchive(ValueError):
    """This store cannot hold backups. The message says which stores can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """The place of all backups of a cluster's databases."""

    bucket: str
    folder: str
    """The key in the bucket, without slashes at its ends."""
    endpoint: str | None
    region: str
    has_keys: bool
    """False: the machine's own role is used, and no file of keys is needed."""
    ca_file: str | None = None
    """On the machine of Postgres. None: the system's CAs."""
    sse: str = ""
    """The server-side encryption of uploads, as Barman calls it; empty: the bucket's default."""
    sse_kms_key_id: str | None = None

    @classmethod
    def of(cls, store_url: str, cluster: str, settings: StoreSettings) -> "Archive":
        """Raises ValueError for a URL that cannot be read, and NoArchive for a store that is not S3."""
        url = StoreUrl.parse(store_url)
        if url.scheme != "s3":
            raise NoArchive(f"backups go into an S3 bucket, and TIDELOG_STORE_URL is {store_url}")
        folder = "/".join(
            part for part in (url.prefix.strip("/"), backups_prefix(cluster).strip("/")) if part
        )
        return cls(
            bucket=url.bucket,
            folder=folder,
            endpoint=url.endpoint,
            region=settings.s3_region,
            has_keys=settings.s3_access_key is not None,
            ca_file=settings.s3_ca_file,
            sse=settings.s3_sse,
            sse_kms_key_id=settings.s3_sse_kms_key_id,
        )

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.folder}"

    def store_options(self) -> list[str]:
        """The options that each of Barman's commands needs to reach the bucket."""
        if self.endpoint is None:
            return []
        return ["--endpoint-url", self.endpoint, "--addressing-style", "path"]

    def upload_options(self) -> list[str]:
        """The further options of the commands that upload. Barman cannot ask for a bucket key."""
        options = ["--encryption", self.sse] if self.sse else []
        return options if self.sse_kms_key_id is None else [*options, "--sse-kms-key-id", self.sse_kms_key_id]

    def environment(self) -> dict[str, str]:
        """Checksums that only newer stores know are sent only where a request demands them."""
        return {
            "AWS_DEFAULT_REGION": self.region,
            "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
            "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
            **({} if self.ca_file is None else {"AWS_CA_BUNDLE": self.ca_file}),
        }

    def archive_command(self, program: str, server: str, data_directory: str, keys_file: str) -> str:
        """For postgresql.conf. Postgres runs it in its data directory.

        The test at its start keeps a copy of the data directory that is started elsewhere on the machine from
        writing into the original's archive.
        """
        words = [program, "--lz4", *self.store_options(), *self.upload_options(), self.url, server]
        return f"[ . -ef {_quoted(data_directory)} ] && {self._prepared(keys_file, words)} %p"

    def restore_command(self, program: str, server: str, keys_file: str) -> str:
        """For postgresql.conf, while a backup is restored."""
        words = [program, *self.store_options(), self.url, server]
        return f"{self._prepared(keys_file, words)} %f %p"

    def _prepared(self, keys_file: str, words: list[str]) -> str:
        variables = self.environment() | ({"AWS_SHARED_CREDENTIALS_FILE": keys_file} if self.has_keys else {})
        assigned = [f"{name}={_quoted(value)}" for name, value in variables.items()]
        return " ".join([*assigned, *map(_quoted, words)])


def keys_text(settings: StoreSettings) -> str | None:
    """The content of the file of keys; None where no keys are set."""
    if settings.s3_access_key is None or settings.s3_secret_key is None:
        return None
    secret = settings.s3_secret_key.get_secret_value()
    return f"[default]\naws_access_key_id = {settings.s3_access_key}\naws_secret_access_key = {secret}\n"


def default_keys_file(data_directory: str) -> str:
    """Next to the data directory: inside it, every base backup and every copy would hold the keys."""
    directory = Path(data_directory)
    return str(directory.with_name(f"{directory.name}.backup-keys"))


def _quoted(word: str) -> str:
    """For the shell, and for Postgres, which replaces %p and %f."""
    return shlex.quote(word).replace("%", "%%")
