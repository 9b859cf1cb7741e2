"""Imports once, before ranks are forked, what torch's frameworks import on first use (seconds)."""

import torch._dynamo
import torch.distributed._composable.replicate
import torch.distributed.checkpoint._fsspec_filesystem
import torch.distributed.pipelining
import torch.distributed.tensor.parallel
import torch.utils._sympy.reference
import torch.utils.serialization.config  # noqa: F401
