"""Numbers of things, in words as a person would say them."""


def counted(number: int, thing: str) -> str:
    """`1 record`, `1,000 records`; `thing` takes an s."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"
