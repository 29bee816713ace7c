"""A process that reads HDF5 files, each in a fork of its own: thousands without a new Python each.

Run as a script: a line of JSON (file, results, memory, output) comes in, the exit code goes out.
Each fork does what `unpad.importers.hdf5_worker` does as a process of its own.
"""

from __future__ import annotations

import json
import os
import runpy
import sys

SECONDS = 10

if __name__ == "__main__":
    import h5py  # noqa: F401 - imported once, for all forks

    worker = runpy.run_path(sys.argv[1])
    for line in sys.stdin:
        path, results, memory, output = json.loads(line)
        child = os.fork()
        if child == 0:
            with open(results, "wb") as out:  # noqa: PTH123
                worker["limit"](memory, output + (1 << 24), SECONDS)
                worker["dump"](path, out, output)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
