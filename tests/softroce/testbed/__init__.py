"""A RoCE network without RoCE hardware: guests that run a Linux kernel with Soft-RoCE (rdma_rxe).

``host`` knows what this machine has, ``kernel`` builds and caches the guest kernels, ``uml`` and
``qemu`` say how one guest is started, ``guest`` runs a command in one or several of them, ``cli``
is the command line of ``run`` and ``prepare``, ``outcome`` brings pytest's reports out of a guest.
"""
