"""`rocenante doctor`: what is wrong with this host's RDMA, and with the network between hosts."""
