"""An importable folder of the Python package from the source tree, without wheels: `python site.py FOLDER`.

    python tests/bindings/site.py FOLDER [--python python3.11] [--packs FOLDER]
    PYTHONPATH=FOLDER python3.11 -c 'import kiln; print(kiln.info())'

Leaves in FOLDER what an installed wheel has: kiln/ with its extension for one Python, and kiln/lib with the libraries,
libkiln_torch.so among them once its sources are there. The Python modules are links into the source tree, so that what
is edited there counts at once; the libraries are compiled again when their sources have changed, and only then.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
