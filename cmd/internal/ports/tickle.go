package ports

import (
	"errors"
	"net/netip"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/tickle"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

const (
	// listedConns is how many connections of a listener are listed for another node.
	listedConns = 4096
	// listEvery is how often the list is made true. A node that is lost leaves out connections that
	// are younger.
	listEvery = 250 * time.Millisecond
	// tickles is how often the clients of the node before are sent a segment, one each second: the
	// first ones can come before the network knows where the address is.
	tickles = 4
)

// followTCP keeps a list of the connections of a listener in the state directory that nodes share,
// and ends the connections that another node has left there. stop ends it.
func (s *Set) followTCP(t *tcp.Listener, at netip.AddrPort) (stop func(), err error) {
	if s.Settings().HALease == 0 {
		return func() {}, nil
	}
	// By this name package state detaches it from a process that was stopped and continues.
	mem, err := s.State.Memory("connections-tcp-"+at.String(), listedConns*tickle.Record)
	if err != nil {
		return nil, err
	}
	table, left := tickle.Open(mem)
	if s.From != nil {
		left = nil // the old process has handed them over
	}
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(listEvery)
		defer tick.Stop()
		for n := 0; ; n++ {
			if every := int(time.Second / listEvery); n%every == 0 && n/every < tickles && len(left) > 0 {
				s.tickle(left, n == 0)
			}
			var list []tickle.Conn
			for _, c := range t.Conns() {
				list = append(list, tickle.Conn{Local: c.Local, Remote: c.Remote})
			}
			table.Set(list)
			select {
			case <-tick.C:
			case <-end:
				return
			}
		}
	}()
	return func() {
		close(end)
		<-ended
		table.Set(nil) // who closes connections tells the clients
	}, nil
}

func (s *Set) tickle(left []tickle.Conn, first bool) {
	sent, err := tickle.Send(left)
	switch {
	case !first:
	case errors.Is(err, syscall.EPERM):
		s.Log.Warn("TCP clients of the node before wait for their timeouts: to reset their connections this process "+
			"needs CAP_NET_RAW, see docs/ha.md", zap.Int("connections", len(left)))
	default:
		s.Log.Info("TCP connections of the node before are reset", zap.Int("connections", sent), zap.Error(err))
	}
}
