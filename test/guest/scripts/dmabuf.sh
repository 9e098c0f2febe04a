# The Go client with memory of another device, which a dma-buf of udmabuf plays.
await given
cd /run/host
export NFS_TEST_URL="nfs+rdma://${SERVER:-$HOST}/e?provider=verbs" NFS_TEST_VERSIONS=$VERSIONS
tests env RDMA_TEST_DMABUF=$DMABUFS LD_PRELOAD=/run/host/dmabuf.so ./dial.test -test.v -test.run DMABuf -test.timeout 2m
tests env RDMA_TEST_DMABUF=refused ./dial.test -test.v -test.run DMABuf -test.timeout 2m
[ -z "${SERVER:-}" ] || both
