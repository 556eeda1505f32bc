"""Print, as JSON, the device memory that each step with a two-method program takes.

Run in a process of its own, so that nothing else is on the device for it. ``forward`` of the
program is on the host, ``forward2`` plans 32 MiB on CUDA and has 4 MiB of weights.
"""

from __future__ import annotations

import gc
import json
import sys

import torch

from pteron import Runtime
from support import cuda_fixtures as fixtures


def taken(before: int) -> int:
    torch.cuda.synchronize()
    return before - torch.cuda.mem_get_info()[0]


def main() -> None:
    torch.backends.cudnn.allow_tf32 = False
    # What any use of CUDA costs: the context, and the libraries that torch loads lazily.
    torch.ones(8, 8, device="cuda").add_(1)
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.mem_get_info()[0]
    (host,), (device,) = fixtures.cases("mixed_host_cuda").values()
    table: dict[str, int] = {}

    program = Runtime.get().load_program(
        fixtures.pte_path("mixed_host_cuda"), data_path=fixtures.ptd_path("mixed_host_cuda")
    )
    table["open the program"] = taken(before)
    forward = program.load_method("forward")
    host.check(forward.execute(host.inputs))
    table["load and run the host method"] = taken(before)
    forward2 = program.load_method("forward2")
    table["load the device method"] = taken(before)
    reserved = torch.cuda.memory_reserved()
    for _ in range(2):
        device.check(forward2.execute(device.inputs))
        host.check(forward.execute(host.inputs))
    table["run both, twice"] = taken(before)
    table["of which torch's cache"] = torch.cuda.memory_reserved() - reserved

    (output,) = forward2.execute(device.inputs, borrow_outputs=True)
    host.check(forward.execute(host.inputs))
    device.check([output])

    plan = {str(d): n for n, d in forward2.metadata.planned_buffers()}
    table["planned on cuda:0"] = plan["cuda:0"]
    table["allocated by report on cuda:0"] = sum(
        report.allocated_bytes for report in forward2.memory if report.device == "cuda:0"
    )
    table["weights"] = 4_198_400
    del output, forward2, forward
    program.close()
    del program
    gc.collect()
    table["close the program"] = taken(before)
    torch.cuda.empty_cache()
    table["and empty torch's cache"] = taken(before)
    json.dump(table, sys.stdout)


if __name__ == "__main__":
    main()
