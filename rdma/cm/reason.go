package cm

import "fmt"

// Reason says why a connection was rejected (IBTA 12.6.7.2).
type Reason uint16

// Reasons that the code names. Peers may send others.
const (
	NoQP               Reason = 1
	NoResources        Reason = 3
	Timeout            Reason = 4
	UnsupportedRequest Reason = 5
	InvalidCommID      Reason = 6
	InvalidServiceID   Reason = 8
	InvalidTransport   Reason = 9
	StaleConnection    Reason = 10
	InvalidGID         Reason = 12
	InvalidMTU         Reason = 26
	ConsumerDefined    Reason = 28
)

// reasonText is indexed by reason. InvalidGID to 17, and 32, are about the primary path.
var reasonText = [...]string{
	NoQP:               "no queue pair available",
	2:                  "no end-to-end context available",
	NoResources:        "no resources",
	Timeout:            "the peer gave up waiting",
	UnsupportedRequest: "unsupported request",
	InvalidCommID:      "unknown communication ID",
	7:                  "invalid communication instance",
	InvalidServiceID:   "nothing listens on the port",
	InvalidTransport:   "unsupported transport service type",
	StaleConnection:    "stale connection: the peer still remembers an earlier one of the same identity",
	11:                 "the reliable datagram channel does not exist",
	InvalidGID:         "the addresses in the request are not those of the packet",
	13:                 "invalid LID",
	14:                 "invalid service level",
	15:                 "invalid traffic class",
	16:                 "invalid hop limit",
	17:                 "invalid packet rate",
	18:                 "invalid GID of the alternate path",
	19:                 "invalid LID of the alternate path",
	20:                 "invalid service level of the alternate path",
	21:                 "invalid traffic class of the alternate path",
	22:                 "invalid hop limit of the alternate path",
	23:                 "invalid packet rate of the alternate path",
	24:                 "redirected to another port and communication manager",
	25:                 "redirected to another port",
	InvalidMTU:         "the path MTU does not fit the interface",
	27:                 "not enough READs at once",
	ConsumerDefined:    "refused by the application",
	29:                 "invalid RNR retry count",
	30:                 "duplicate communication ID",
	31:                 "unsupported class version",
	32:                 "invalid flow label",
	33:                 "invalid flow label of the alternate path",
	35:                 "vendor option not supported",
}

// String says the reason in words.
func (r Reason) String() string {
	if int(r) < len(reasonText) && reasonText[r] != "" {
		return reasonText[r]
	}
	return fmt.Sprintf("reason %d", uint16(r))
}
