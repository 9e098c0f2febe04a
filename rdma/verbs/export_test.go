//go:build rdmacore && linux && cgo

package verbs

import (
	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/rdmatest"
)

// Quirks are the deviations of the device from the contract: those of libibverbs and librdmacm,
// which all devices have, and those of the driver.
func (d *Device) Quirks() rdmatest.Quirks {
	return rdmatest.Quirks{
		NoEventFlags: true, NoServiceQKeys: true, LongFails: true,
		NoSQD: d.quirks.noSQD, NoSQE: d.quirks.noSQE, NoReadRights: d.quirks.noReadRights,
	}
}

// NameAckTimeout sets the ACK timeout in the REQ of a connection that is being prepared.
func NameAckTimeout(c rdma.Conn, code uint8) { c.(*conn).id.setAckTimeout(code) }

// AckTimeout is the ACK timeout code of an established connection.
func AckTimeout(c rdma.Conn) uint8 { return c.(*conn).ackTimeout }
