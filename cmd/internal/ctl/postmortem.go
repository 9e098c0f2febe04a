package ctl

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/rstored/rstored/cmd/internal/control"
)

func (t *tool) postMortems(ctx context.Context) error {
	list, err := t.daemon().PostMortems(ctx)
	if err != nil {
		return err
	}
	return t.g.Print(list, func(w io.Writer) {
		if len(list) == 0 {
			fmt.Fprintln(w, "no RDMA connection has failed since the server's start")
		}
		for i := range list {
			if i > 0 {
				fmt.Fprintln(w)
			}
			printPostMortem(w, &list[i])
		}
	})
}

// printPostMortem is made for reading from the top: what happened, what to do,
// then everything that is known.
func printPostMortem(w io.Writer, p *control.PostMortem) {
	fmt.Fprintf(w, "%s  %s -> %s  %s: %s\n", p.Time.Local().Format(time.DateTime), p.Peer, p.Local, p.Outcome, p.Reason)
	if p.Count > 1 {
		fmt.Fprintf(w, "  %d times since %s\n", p.Count, p.First.Local().Format(time.DateTime))
	}
	fmt.Fprintf(w, "  -> %s\n", p.Hint)
	if r := p.Request; r != nil {
		fmt.Fprintf(w, "  request: port %d, QPN %#x, PSN %d, path MTU %d, READs %d served and %d started, ACK timeout code %d, %d retries, %d RNR retries\n",
			r.Port, r.QPN, r.PSN, r.PathMTU, r.ResponderResources, r.InitiatorDepth, r.AckTimeout, r.RetryCount, r.RNRRetryCount)
		fmt.Fprintf(w, "  GIDs: %s -> %s\n", r.LocalGID, r.RemoteGID)
		if v := r.Private; v != nil {
			fmt.Fprintf(w, "  RPC-over-RDMA: sends %d, receives %d bytes, remote invalidation %v\n", v.Send, v.Receive, v.RemoteInvalidation)
		}
		fmt.Fprintf(w, "  private data: %s\n", r.PrivateData)
	}
	fmt.Fprintf(w, "  our interface: MTU %d, path MTU up to %d\n", p.InterfaceMTU, p.PathMTUMax)
	if c := p.Connection; c != nil {
		up := "never established"
		if c.Established {
			up = "established"
		}
		fmt.Fprintf(w, "  connection: %s, after %v, QPN %#x, PSN %d, path MTU %d, READs %d served and %d started, ACK timeout code %d, %d retries, %d RNR retries\n",
			up, time.Duration(c.AgeMillis)*time.Millisecond, c.QPN, c.PSN, c.PathMTU, c.ReadsServed, c.ReadsStarted, c.AckTimeout, c.RetryCount, c.RNRRetryCount)
		fmt.Fprintf(w, "  packets: %d sent, %d received\n", c.TxPackets, c.RxPackets)
		if c.Status != "" {
			fmt.Fprintf(w, "  failed request: %s\n", c.Status)
		}
		for _, n := range []struct {
			what string
			nak  *control.PostMortemNAK
		}{{"NAKs sent", c.NAKSent}, {"NAKs received", c.NAKReceived}, {"RNR NAKs sent", c.RNRSent}, {"RNR NAKs received", c.RNRReceived}} {
			printNAK(w, n.what, n.nak)
		}
		printPackets(w, c.Recent)
	}
	if r := p.RPC; r != nil {
		fmt.Fprintf(w, "  RPC: %d calls, %d in progress, %d bytes by RDMA WRITE, %d by RDMA READ, messages up to %d in and %d out\n",
			r.Calls, r.InProgress, r.RDMAWriteBytes, r.RDMAReadBytes, r.InlineIn, r.InlineOut)
		printCall(w, "first call", r.First)
		printCall(w, "last call", r.Last)
	}
}

// printPackets lists the last packets, with the time before the end.
func printPackets(w io.Writer, list []control.PostMortemPackets) {
	if len(list) > 0 {
		fmt.Fprintln(w, "  last packets:")
	}
	for _, k := range list {
		dir := "received"
		if k.Sent {
			dir = "sent"
		}
		fmt.Fprintf(w, "    -%-10v %-8s %s PSN %d", time.Duration(k.BeforeUS)*time.Microsecond, dir, k.Opcode, k.PSN)
		if k.Count > 1 {
			fmt.Fprintf(w, " and %d more", k.Count-1)
		}
		if k.Bytes > 0 {
			fmt.Fprintf(w, ", %d bytes", k.Bytes)
		}
		if k.AckReq {
			fmt.Fprint(w, ", asks for an ACK")
		}
		if k.AETH != "" {
			fmt.Fprintf(w, ": %s", k.AETH)
		}
		fmt.Fprintln(w)
	}
}

func printNAK(w io.Writer, what string, n *control.PostMortemNAK) {
	if n == nil {
		return
	}
	fmt.Fprintf(w, "  %s: %d, the first %s (syndrome %#x, PSN %d)", what, n.Count, n.Text, n.Syndrome, n.PSN)
	if n.LastText != "" {
		fmt.Fprintf(w, ", the last %s (PSN %d)", n.LastText, n.LastPSN)
	}
	fmt.Fprintln(w)
}

func printCall(w io.Writer, what string, c *control.PostMortemCall) {
	if c == nil {
		return
	}
	fmt.Fprintf(w, "  %s: program %d version %d procedure %d", what, c.Program, c.Version, c.Procedure)
	if c.Name != "" {
		fmt.Fprintf(w, " (%s)", c.Name)
	}
	switch {
	case c.UID != nil:
		fmt.Fprintf(w, ", AUTH_SYS uid %d\n", *c.UID)
	default:
		fmt.Fprintf(w, ", flavor %d\n", c.Flavor)
	}
}
