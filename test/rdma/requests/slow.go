package requests

import (
	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/link"
)

// Slow is a link whose clock is slow, so that on a busy host nothing is sent again because
// an answer took longer than the shortest timeout.
func Slow(l link.Link, by rdma.Time) link.Link { return slow{l, l.Now(), by} }

type slow struct {
	link.Link
	begin, by rdma.Time
}

func (l slow) Now() rdma.Time { return l.begin + (l.Link.Now()-l.begin)/l.by }

func (l slow) Recv(rx *link.Rx, deadline rdma.Time) (int, error) {
	if deadline > 0 {
		deadline = l.begin + (deadline-l.begin)*l.by
	}
	return l.Link.Recv(rx, deadline)
}
