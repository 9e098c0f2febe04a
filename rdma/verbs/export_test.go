//go:build rdmacore && linux && cgo

package verbs

import "github.com/rstored/rstored/rdma"

// NameAckTimeout has the REQ of a connection that is being prepared name an ACK timeout.
func NameAckTimeout(c rdma.Conn, code uint8) { c.(*conn).id.setAckTimeout(code) }

// AckTimeout is the code that a connection is established with.
func AckTimeout(c rdma.Conn) uint8 { return c.(*conn).ackTimeout }
