"""What a build takes besides its compiles, each as it was measured; docs/measurements/foresight.md says how.

They differ from machine to machine by less than compiles do from kernel to kernel; `kiln simulate --cost NAME=SECONDS`
puts another in place of one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    """Seconds, if nothing else is said.

    Attributes:
        start: until the first job is given out: reading recipes, planning, the toolchain's identity.
        look_up: of one image in the store, whether it is there or not; one after another.
        fetch: of one image from a shared cache, one after another.
        start_up: of a worker, until its first compile.
        transfer: of one image, from the compiler's end to the store's and back to the worker's next job.
        handling: that the build itself spends on an event of a worker; no worker gets a job meanwhile.
        pack: of one image, on one core, at the end; `packers` of them work at once.
        link: of the libraries and the tarball, at the end.
        packers: cores of the machine that builds.
        job_bytes: of a job and its answer, between the build and a worker.
        image_bytes: of an image and what is known of it, as a store keeps it.
    """

    start: float = 2.0
    look_up: float = 150e-6
    fetch: float = 2e-3
    start_up: float = 0.7
    transfer: float = 3e-3
    handling: float = 350e-6
    pack: float = 57e-3
    link: float = 15.0
    packers: int = 8
    job_bytes: int = 3500
    image_bytes: int = 17_500
