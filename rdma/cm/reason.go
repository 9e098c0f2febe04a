package cm

import "fmt"

// Reason says why a connection was rejected (IBTA table 106).
type Reason uint16

// Reject reasons. InvalidGID to InvalidPacketRate and InvalidFlowLabel are about
// the primary path.
const (
	NoQP                     Reason = 1
	NoEEC                    Reason = 2
	NoResources              Reason = 3
	Timeout                  Reason = 4
	UnsupportedRequest       Reason = 5
	InvalidCommID            Reason = 6
	InvalidCommInstance      Reason = 7
	InvalidServiceID         Reason = 8
	InvalidTransport         Reason = 9
	StaleConnection          Reason = 10
	NoRDC                    Reason = 11
	InvalidGID               Reason = 12
	InvalidLID               Reason = 13
	InvalidSL                Reason = 14
	InvalidTrafficClass      Reason = 15
	InvalidHopLimit          Reason = 16
	InvalidPacketRate        Reason = 17
	InvalidAltGID            Reason = 18
	InvalidAltLID            Reason = 19
	InvalidAltSL             Reason = 20
	InvalidAltTrafficClass   Reason = 21
	InvalidAltHopLimit       Reason = 22
	InvalidAltPacketRate     Reason = 23
	PortAndCMRedirection     Reason = 24
	PortRedirection          Reason = 25
	InvalidMTU               Reason = 26
	InsufficientResources    Reason = 27
	ConsumerDefined          Reason = 28
	InvalidRNRRetry          Reason = 29
	DuplicateCommID          Reason = 30
	InvalidClassVersion      Reason = 31
	InvalidFlowLabel         Reason = 32
	InvalidAltFlowLabel      Reason = 33
	VendorOptionNotSupported Reason = 35
)

var reasonText = [...]string{
	NoQP:                     "no queue pair available",
	NoEEC:                    "no end-to-end context available",
	NoResources:              "no resources",
	Timeout:                  "the peer gave up waiting",
	UnsupportedRequest:       "unsupported request",
	InvalidCommID:            "unknown communication ID",
	InvalidCommInstance:      "invalid communication instance",
	InvalidServiceID:         "nothing listens on the port",
	InvalidTransport:         "unsupported transport service type",
	StaleConnection:          "stale connection: the peer still remembers an earlier one of the same identity",
	NoRDC:                    "the reliable datagram channel does not exist",
	InvalidGID:               "the addresses in the request are not those of the packet",
	InvalidLID:               "invalid LID",
	InvalidSL:                "invalid service level",
	InvalidTrafficClass:      "invalid traffic class",
	InvalidHopLimit:          "invalid hop limit",
	InvalidPacketRate:        "invalid packet rate",
	InvalidAltGID:            "invalid GID of the alternate path",
	InvalidAltLID:            "invalid LID of the alternate path",
	InvalidAltSL:             "invalid service level of the alternate path",
	InvalidAltTrafficClass:   "invalid traffic class of the alternate path",
	InvalidAltHopLimit:       "invalid hop limit of the alternate path",
	InvalidAltPacketRate:     "invalid packet rate of the alternate path",
	PortAndCMRedirection:     "redirected to another port and communication manager",
	PortRedirection:          "redirected to another port",
	InvalidMTU:               "the path MTU does not fit the interface",
	InsufficientResources:    "not enough READs at once",
	ConsumerDefined:          "refused by the application",
	InvalidRNRRetry:          "invalid RNR retry count",
	DuplicateCommID:          "duplicate communication ID",
	InvalidClassVersion:      "unsupported class version",
	InvalidFlowLabel:         "invalid flow label",
	InvalidAltFlowLabel:      "invalid flow label of the alternate path",
	VendorOptionNotSupported: "vendor option not supported",
}

// String says the reason in words.
func (r Reason) String() string {
	if int(r) < len(reasonText) && reasonText[r] != "" {
		return reasonText[r]
	}
	return fmt.Sprintf("reason %d", uint16(r))
}
