"""Whether the weights of a model can be fetched at all, before anything waits for them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

PATIENCE = 3.0
"""Seconds for a connection; who has a network is connected in a tenth of one."""
NO_CONNECTION = frozenset({"ConnectError", "ConnectTimeout", "ProxyError"})
"""Errors of the hub's client by name: which package they come from differs between its versions."""


def unreachable(address: str, patience: float = PATIENCE) -> str | None:
    """Why no connection to the server of an address can be made, proxies included; None where one can. What the server
    answers does not matter."""
    from huggingface_hub import get_session  # so that this takes the way that the download will take

    reasons: list[str | None] = []

    def ask() -> None:
        try:
            get_session().head(address, timeout=patience)
            reasons.append(None)
        except Exception as error:
            kinds = {kind.__name__ for kind in type(error).__mro__}
            failed = bool(NO_CONNECTION & kinds)  # otherwise something has answered
            reasons.append((str(error) or type(error).__name__) if failed else None)

    asking = threading.Thread(target=ask, daemon=True)  # no timeout holds for the look-up of a name
    asking.start()
    asking.join(patience)
    return reasons[0] if reasons else f"no answer from {urlsplit(address).netloc} in {patience:g} s"


def server_of(card: object) -> str:
    """Where timm fetches the weights of a model with this card."""
    from huggingface_hub import constants

    if getattr(card, "hf_hub_id", None):
        return constants.ENDPOINT
    return str(getattr(card, "url", "")) or constants.ENDPOINT


@contextmanager
def from_the_cache_alone() -> Iterator[None]:
    """Within, the hub's client takes what was downloaded before and tries no connection: it would try for a minute."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
