//go:build rdmacore

package cli

// rdmaCore says that this program was built to use RDMA devices through rdma-core.
const rdmaCore = true
