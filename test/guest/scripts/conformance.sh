# The tests of rdma/verbs, and of dma-bufs in rpcrdma. With dmabuf.so libibverbs asks the kernel for a dma-buf; without it
# it refuses by itself.
rdma_device
addresses
await given
cd /run/host
tests env RDMA_TEST_DMABUF=$DMABUFS LD_PRELOAD=/run/host/dmabuf.so ./verbs.test -test.v -test.timeout 9m
tests env RDMA_TEST_DMABUF=$DMABUFS LD_PRELOAD=/run/host/dmabuf.so ./rpcrdma.test -test.v -test.run UDMABuf/verbs -test.timeout 1m
tests env RDMA_TEST_DMABUF=refused ./verbs.test -test.v -test.run DMABuf -test.timeout 1m
tests env RDMA_TEST_DMABUF=refused ./rpcrdma.test -test.v -test.run UDMABuf/verbs -test.timeout 1m
