// Package requests plays a fixed sequence of requests, as client and as server, so that
// two implementations can be compared packet by packet. The file sequence says what is
// played and what its lines mean; test/guest/verbs/verbs.c plays it over rdma-core.
package requests

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/wire"
)

// Sequence is the file.
//
//go:embed sequence
var Sequence string

// Parts are the parts of the sequence, each played by a client and a server of its own.
func Parts() []string { return strings.Split(Sequence, "\npart\n") }

// BasePort is the port of the first connection; the others follow.
const BasePort = 7480

// The server's memory. Sizes in bytes.
const (
	rwLen     = 16384
	roLen     = 4096
	zeros     = 64 // at the beginning of rw
	windows   = 6
	windowLen = 512
	windowsAt = 8192 // in rw

	// Regions is how many a server tells of: rw, ro and the windows, in this order.
	Regions = 2 + windows
	// RegionLen is the length of what is told of one: address, length and R_Key, in
	// network order.
	RegionLen = 16
)

// Spoil makes an R_Key that was never given out of one that was.
func Spoil(key uint32) uint32 { return key ^ 0x5a }

// Connection is one connection of the sequence.
type Connection struct {
	Name     string
	Receives int // that the server posts
	Bytes    int // of each
	Late     bool
	Gone     bool
	Deny     bool
	Loses    bool
	Lost     wire.Opcode // if Loses
	Lines    []Line
}

// Line is one request.
type Line struct {
	Number    int // in the file
	Op        rdma.SendOp
	Length    Amount
	Region    int // -1 for none
	WrongKey  bool
	Offset    Amount
	Compare   uint64
	Swap      uint64
	Solicited bool
	Status    rdma.Status
	Or        rdma.Status // another that will do, 0 for none
}

// Amount is a number of bytes that may depend on the path MTU.
type Amount struct{ MTUs, Bytes int }

// At is the amount for a path MTU.
func (a Amount) At(mtu rdma.MTU) int { return a.MTUs*int(mtu) + a.Bytes }

var opNames = map[string]rdma.SendOp{
	"send": rdma.OpSend, "send-imm": rdma.OpSendImm, "send-inv": rdma.OpSendInv, "write": rdma.OpWrite,
	"write-imm": rdma.OpWriteImm, "read": rdma.OpRead, "cas": rdma.OpCompareSwap, "add": rdma.OpFetchAdd,
}

// Parse reads a sequence.
func Parse(text string) (out []Connection, err error) {
	n := 0
	for l := range strings.Lines(text) {
		n++
		words := strings.Fields(l)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if words[0] == "connection" {
			var c Connection
			if c, err = parseConnection(words[1:]); err == nil {
				out = append(out, c)
			}
		} else if len(out) == 0 {
			err = fmt.Errorf("%s before a connection", words[0])
		} else {
			var l Line
			if l, err = parseLine(words); err == nil {
				l.Number = n
				c := &out[len(out)-1]
				c.Lines = append(c.Lines, l)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
	return out, nil
}

func parseConnection(words []string) (c Connection, err error) {
	if len(words) < 3 {
		return c, fmt.Errorf("connection NAME RECEIVES BYTES [OPTION], not %q", words)
	}
	c.Name = words[0]
	if c.Receives, err = strconv.Atoi(words[1]); err != nil {
		return c, err
	}
	if c.Bytes, err = strconv.Atoi(words[2]); err != nil {
		return c, err
	}
	switch option := strings.Join(words[3:], " "); option {
	case "":
	case "late":
		c.Late = true
	case "gone":
		c.Gone = true
	case "deny":
		c.Deny = true
	default:
		name, is := strings.CutPrefix(option, "lose ")
		for c.Lost = 0; is && c.Lost.IsRC(); c.Lost++ {
			if c.Lost.String() == name {
				c.Loses = true
				return c, nil
			}
		}
		return c, fmt.Errorf("%q is no option", option)
	}
	return c, nil
}

func parseLine(words []string) (l Line, err error) {
	op, known := opNames[words[0]]
	if !known || len(words) < 2 {
		return l, fmt.Errorf("%q is no request", words)
	}
	l.Op, l.Region = op, -1
	if l.Length, err = parseAmount(words[1]); err != nil {
		return l, err
	}
	for i := 2; i < len(words) && err == nil; i++ {
		word := words[i]
		switch {
		case word == "solicited":
			l.Solicited = true
			continue
		case word != "compare" && word != "swap" && word != "status" && word != "or":
			err = l.parseRegion(word)
			continue
		case i+1 == len(words):
			return l, fmt.Errorf("%s what?", word)
		}
		i++
		var v uint64
		v, err = strconv.ParseUint(words[i], 10, 64)
		switch word {
		case "compare":
			l.Compare = v
		case "swap":
			l.Swap = v
		case "or":
			l.Or = rdma.Status(v)
		default:
			l.Status = rdma.Status(v)
		}
	}
	return l, err
}

func (l *Line) parseRegion(word string) (err error) {
	word, offset, is := strings.Cut(word, "+")
	if is {
		if l.Offset, err = parseAmount(offset); err != nil {
			return err
		}
	}
	word, l.WrongKey = strings.CutSuffix(word, "!")
	for i := range Regions {
		if word == RegionName(i) {
			l.Region = i
			return nil
		}
	}
	return fmt.Errorf("%s is no memory", word)
}

// RegionName is what the sequence calls a region.
func RegionName(i int) string {
	switch i {
	case 0:
		return "rw"
	case 1:
		return "ro"
	}
	return "win" + strconv.Itoa(i-2)
}

func parseAmount(s string) (a Amount, err error) {
	mtus, rest, is := strings.Cut(s, "mtu")
	if !is {
		a.Bytes, err = strconv.Atoi(s)
		return a, err
	}
	a.MTUs = 1
	if mtus != "" {
		if a.MTUs, err = strconv.Atoi(mtus); err != nil {
			return a, err
		}
	}
	if rest != "" {
		a.Bytes, err = strconv.Atoi(rest)
	}
	return a, err
}
