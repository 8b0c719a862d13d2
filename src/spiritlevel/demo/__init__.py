"""The demo: seven small networks trained to different ends, measured, drawn and explained."""

from .result import Demo as Demo
from .result import run as run
