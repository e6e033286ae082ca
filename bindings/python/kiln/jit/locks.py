"""Triton's language, settings and variables are the process's: what changes them for a while holds this meanwhile."""

from __future__ import annotations

import threading

TRITON = threading.RLock()
