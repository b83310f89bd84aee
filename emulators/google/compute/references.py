"""Links to resources in bodies: full ones, or parts of them, and what they name."""

import re
from typing import Final

from emulators.google.compute.refusing import wrong

_BEGIN: Final = re.compile(r"^https?://[^/]+/compute/[a-z0-9]+/")
"""Of whichever host the API was called by: gcloud writes its own endpoint into links."""


def parts(link: str) -> list[str]:
    """Give the words of a link behind its host.

    >>> parts("https://www.googleapis.com/compute/v1/projects/p/global/networks/default")
    ['projects', 'p', 'global', 'networks', 'default']
    """
    return _BEGIN.sub("", link).strip("/").split("/")


def named(link: str, field: str, project: str, *place: str) -> str:
    """Give the last word of a link that lies in `place` of the project, such as global, networks.

    Raises:
        Denied: It is no such link, or of another project.
    """
    words = parts(link)
    if words[:1] == ["projects"]:
        if words[1:2] != [project]:
            raise wrong(field, link, "The referenced resource is in another project.")
        words = words[2:]
    if len(words) != len(place) + 1 or tuple(words[:-1]) != place:
        raise wrong(field, link, "The URL is malformed.")
    return words[-1]
