package cm

import "fmt"

// Reason says why a connection was rejected (IBTA table 106).
type Reason uint16

// Reject reasons that are used or met.
const (
	NoQP                  Reason = 1
	NoResources           Reason = 3
	Timeout               Reason = 4
	UnsupportedRequest    Reason = 5
	InvalidCommID         Reason = 6
	InvalidCommInstance   Reason = 7
	InvalidServiceID      Reason = 8
	InvalidTransport      Reason = 9
	StaleConnection       Reason = 10
	InvalidGID            Reason = 12
	PortRedirection       Reason = 25
	InvalidMTU            Reason = 26
	InsufficientResources Reason = 27
	ConsumerDefined       Reason = 28
	InvalidRNRRetry       Reason = 29
	DuplicateCommID       Reason = 30
	InvalidClassVersion   Reason = 31
)

var reasonText = map[Reason]string{
	NoQP:                  "no queue pair available",
	NoResources:           "no resources",
	Timeout:               "the peer gave up waiting",
	UnsupportedRequest:    "unsupported request",
	InvalidCommID:         "unknown communication ID",
	InvalidCommInstance:   "invalid communication instance",
	InvalidServiceID:      "nothing listens on the port",
	InvalidTransport:      "unsupported transport service type",
	StaleConnection:       "stale connection: the peer still remembers an earlier one of the same identity",
	InvalidGID:            "the addresses in the request are not those of the packet",
	PortRedirection:       "redirected to another port",
	InvalidMTU:            "the path MTU does not fit the interface",
	InsufficientResources: "not enough READs at once",
	ConsumerDefined:       "refused by the application",
	InvalidRNRRetry:       "invalid RNR retry count",
	DuplicateCommID:       "duplicate communication ID",
	InvalidClassVersion:   "unsupported class version",
}

func (r Reason) String() string {
	if s, ok := reasonText[r]; ok {
		return s
	}
	return fmt.Sprintf("reason %d", uint16(r))
}
