"""torch.distributed.checkpoint through Inrush.

torch.distributed.checkpoint.load(state_dict, storage_reader=inrush.dcp.Reader("/checkpoints/step-1000"))
"""

from inrush.torch._dcp import Reader

__all__ = ["Reader"]
