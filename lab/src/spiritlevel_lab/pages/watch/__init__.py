"""A local page that follows a running study or a monitor's file."""

from .server import Server, open_server
from .sources import Watched

__all__ = ["Server", "Watched", "open_server"]
