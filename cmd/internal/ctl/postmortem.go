package ctl

import (
	"fmt"
	"io"
	"time"

	"github.com/rstored/rstored/cmd/internal/control"
)

func printPostMortems(w io.Writer, list []control.PostMortem) {
	if len(list) == 0 {
		fmt.Fprintln(w, "no RDMA connection has failed since the server's start")
	}
	for i := range list {
		if i > 0 {
			fmt.Fprintln(w)
		}
		printPostMortem(w, &list[i])
	}
}

// printPostMortem prints what happened, what to do, and then everything that is known, to be read
// from the top.
func printPostMortem(w io.Writer, p *control.PostMortem) {
	fmt.Fprintf(w, "%s  %s -> %s  %s: %s\n", p.Time.Local().Format(time.DateTime), p.Peer, p.Local, p.Outcome, p.Reason)
	if p.Count > 1 {
		fmt.Fprintf(w, "  %d times since %s\n", p.Count, p.First.Local().Format(time.DateTime))
	}
	fmt.Fprintf(w, "  -> %s\n", p.Hint)
	if r := p.Request; r != nil {
		fmt.Fprintf(w, "  request: port %d, QPN %#x, ", r.Port, r.QPN)
		if p.Events == nil {
			fmt.Fprintf(w, "PSN %d, ", r.PSN)
		}
		fmt.Fprintf(w, "path MTU %d, READs %d served and %d started, ", r.PathMTU, r.ResponderResources, r.InitiatorDepth)
		if p.Events == nil {
			fmt.Fprintf(w, "ACK timeout code %d, ", r.AckTimeout)
		}
		fmt.Fprintf(w, "%d retries, %d RNR retries\n", r.RetryCount, r.RNRRetryCount)
		if r.LocalGID != "" {
			fmt.Fprintf(w, "  GIDs: %s -> %s\n", r.LocalGID, r.RemoteGID)
		}
		if v := r.Private; v != nil {
			fmt.Fprintf(w, "  RPC-over-RDMA: sends %d, receives %d bytes, remote invalidation %v\n",
				v.Send, v.Receive, v.RemoteInvalidation)
		}
		fmt.Fprintf(w, "  private data: %s\n", r.PrivateData)
	}
	if e := p.Events; e != nil {
		fmt.Fprintf(w, "  our device: %s, %s, path MTU up to %d\n", p.Device, e.Transport, p.PathMTUMax)
		printEvents(w, e)
	} else {
		fmt.Fprintf(w, "  our interface: MTU %d, path MTU up to %d\n", p.InterfaceMTU, p.PathMTUMax)
	}
	if c := p.Connection; c != nil {
		fmt.Fprintf(w, "  connection: %s, after %v, QPN %#x, ", choose(c.Established, "established", "never established"),
			time.Duration(c.AgeMillis)*time.Millisecond, c.QPN)
		if p.Events == nil {
			fmt.Fprintf(w, "PSN %d, ", c.PSN)
		} else if c.RemoteQPN != 0 {
			fmt.Fprintf(w, "the peer's %#x, ", c.RemoteQPN)
		}
		fmt.Fprintf(w, "path MTU %d, READs %d served and %d started, ACK timeout code %d, %d retries, %d RNR retries\n",
			c.PathMTU, c.ReadsServed, c.ReadsStarted, c.AckTimeout, c.RetryCount, c.RNRRetryCount)
		if p.Events == nil {
			fmt.Fprintf(w, "  packets: %d sent, %d received\n", c.TxPackets, c.RxPackets)
		}
		switch f := c.Failed; {
		case f != nil:
			fmt.Fprintf(w, "  failed request: %s: %s (completion status %d, vendor error %#x), %v before the end\n",
				f.Op, c.Status, f.Code, f.Vendor, since(f.BeforeUS))
		case c.Status != "":
			fmt.Fprintf(w, "  failed request: %s\n", c.Status)
		}
		printWork(w, c.Work)
		printNAK(w, "NAKs sent", c.NAKSent)
		printNAK(w, "NAKs received", c.NAKReceived)
		printNAK(w, "RNR NAKs sent", c.RNRSent)
		printNAK(w, "RNR NAKs received", c.RNRReceived)
		printPackets(w, c.Recent)
		printRequests(w, c.Requests)
	}
	if r := p.RPC; r != nil {
		fmt.Fprintf(w, "  RPC: %d calls, %d in progress, %d bytes by RDMA WRITE, %d by RDMA READ, ",
			r.Calls, r.InProgress, r.RDMAWriteBytes, r.RDMAReadBytes)
		fmt.Fprintf(w, "messages up to %d in and %d out\n", r.InlineIn, r.InlineOut)
		printCall(w, "first call", r.First)
		printCall(w, "last call", r.Last)
	}
}

func printEvents(w io.Writer, e *control.PostMortemEvents) {
	if e.CM != "" {
		fmt.Fprintf(w, "  last event of the connection manager: %s", e.CM)
		if e.CMStatus != 0 {
			fmt.Fprintf(w, ", status %d", e.CMStatus)
		}
		fmt.Fprintln(w)
	}
	if e.Async != "" {
		fmt.Fprintf(w, "  last event of the device: %s, %v before the end\n", e.Async, since(e.AsyncUS))
	}
}

func printWork(w io.Writer, k *control.PostMortemWork) {
	if k == nil {
		return
	}
	fmt.Fprintf(w, "  requests: %d of %d bytes posted, %d outstanding", k.Posted, k.PostedBytes, k.Outstanding)
	if k.Outstanding > 0 {
		fmt.Fprintf(w, " (the oldest for %v)", since(k.OldestUS))
	}
	fmt.Fprintf(w, ", %d flushed; %d messages of %d bytes received, receives for %d more\n",
		k.Flushed, k.Received, k.ReceivedBytes, k.Receives)
}

// printRequests lists the last requests, each with its time before the end.
func printRequests(w io.Writer, list []control.PostMortemRequest) {
	if len(list) > 0 {
		fmt.Fprintln(w, "  last requests:")
	}
	for _, k := range list {
		fmt.Fprintf(w, "    -%-10v %-8s %s", since(k.BeforeUS), k.Did, k.Op)
		if k.Count > 1 {
			fmt.Fprintf(w, " and %d more", k.Count-1)
		}
		if k.Bytes > 0 {
			fmt.Fprintf(w, ", %d bytes", k.Bytes)
		}
		if k.Status != "" {
			fmt.Fprintf(w, ": %s, vendor error %#x", k.Status, k.Vendor)
		}
		fmt.Fprintln(w)
	}
}

// printPackets lists the last packets, each with its time before the end.
func printPackets(w io.Writer, list []control.PostMortemPackets) {
	if len(list) > 0 {
		fmt.Fprintln(w, "  last packets:")
	}
	for _, k := range list {
		fmt.Fprintf(w, "    -%-10v %-8s %s PSN %d", since(k.BeforeUS), choose(k.Sent, "sent", "received"), k.Opcode, k.PSN)
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
