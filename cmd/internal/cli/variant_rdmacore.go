//go:build rdmacore

package cli

// rdmaCore reports whether this program was built to use RDMA devices through rdma-core.
const rdmaCore = true
