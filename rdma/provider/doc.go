// Package provider chooses who provides an RDMA device, the stack in user space (rdma/roce) or the
// host's kernel (rdma/verbs), and opens it.
//
// The choice is explicit, or automatic: a device of the kernel where one that is up has the
// address and this program can use it, else the stack in user space. Clients and servers choose by
// the same rule.
package provider
