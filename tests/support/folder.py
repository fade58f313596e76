"""Where `make bench-setup` puts what it fetches and builds; git ignores it."""

from pathlib import Path

FOLDER = Path(__file__).parents[2] / ".cache" / "benchmarks"
BINARIES = FOLDER / "bin"
MINIO = BINARIES / "minio"
TANSU = BINARIES / "tansu"
