# The kernel is the server in guest b, and a Go program on libibverbs its client in guest a.
rdma_device
PATIENCE=180
if [ "$GUEST" = b ]; then
	kernel_serves
	both
	both
	exit 0
fi
both
