// Package provider chooses the provider of an RDMA device, and opens the device. The provider is
// the stack in user space (rdma/roce) or the host's kernel (rdma/verbs). The package knows no
// connection.
//
// The choice is explicit, or automatic: a device of the kernel where one that is up has the address
// and this program can use it, else the stack in user space. Clients and servers choose by the same
// rule.
//
// Begin reading at Host.Choose in choose.go. The methods of a Host may be called from any
// goroutine.
//
//	h := provider.System()
//	choice, err := h.ChooseFor(provider.Auto, remote, netip.Addr{})
//	d, err := h.Open(provider.Config{Choice: choice})
package provider
