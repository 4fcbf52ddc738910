"""What this process holds, and files that are large and take no room on the disk."""
import json
import os
import struct
from pathlib import Path

from conftest import tensor_bytes


def thread_count():
    """Threads that are not about to be gone: Linux lists one that was joined a little longer (PF_EXITING)."""
    count = 0
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/stat") as file:
                count += not int(file.read().rpartition(")")[2].split()[6]) & 4
        except (FileNotFoundError, ProcessLookupError):
            pass
    return count


def descriptor_count():
    return len(os.listdir("/proc/self/fd"))


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def write_sparse(path, tensors):
    """A safetensors file of zeros. tensors: name -> (dtype, shape)."""
    header, offset = {}, 0
    for name, (dtype, shape) in tensors.items():
        end = offset + tensor_bytes(dtype, shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + offset)
    return Path(path)
