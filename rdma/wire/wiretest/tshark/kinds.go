package tshark

import (
	"bytes"
	"context"
	_ "embed" // for the kernel's kinds
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// severityWarning is Wireshark's PI_WARN. The severities below it (note, chat) report
// retransmissions and the like.
const severityWarning = 0x00600000

// What separates the fields of a line and the values of a field: no message has them.
const (
	fieldSep = "\x1f"
	valueSep = "\x1e"
)

//go:embed testdata/kernel-kinds.txt
var kernelKinds string

// number matches the numbers in a complaint, by which complaints of one kind differ.
var number = regexp.MustCompile(`[0-9]+`)

// Kinds counts the complaints about the RoCE packets of a capture by kind: those of severity
// warning and error, and malformed packets. A kind is the protocols of the packet from InfiniBand
// on, the RPC procedure, and the message with its numbers replaced by N.
//
// If addresses are given, only packets from them count.
//
// Without tshark the error is exec.ErrNotFound. If tshark fails half way, for example at a capture
// that ends inside of a packet, Kinds returns the counts until then with the error.
func Kinds(ctx context.Context, pcap string, from ...string) (map[string]int, error) {
	// tshark takes file data for an encapsulated frame if it begins with the number of an Ethernet
	// protocol and two bytes of zero. Such packets are left out.
	filter := fmt.Sprintf("infiniband and not frame.protocols contains \"infiniband:ethertype\" and "+
		"(_ws.expert.severity >= %d or _ws.malformed)", severityWarning)
	var senders []string
	for _, a := range from {
		field := "ip.src"
		if strings.Contains(a, ":") {
			field = "ipv6.src"
		}
		senders = append(senders, field+" == "+a)
	}
	if len(senders) > 0 {
		filter += " and (" + strings.Join(senders, " or ") + ")"
	}
	lines, err := dissect(ctx, pcap, filter,
		"frame.protocols", "rpc.program", "rpc.programversion", "rpc.procedure", "rpc.msgtyp",
		"_ws.expert.severity", "_ws.expert.message", "_ws.malformed")
	kinds := make(map[string]int)
	for _, f := range lines {
		where := place(f)
		severities, messages := f[5], f[6]
		for i, m := range messages {
			// Each complaint has one severity and one message, in the same order.
			if len(severities) == len(messages) {
				if s, err := strconv.Atoi(severities[i]); err == nil && s < severityWarning {
					continue
				}
			}
			kinds[where+number.ReplaceAllString(m, "N")]++
		}
		for _, m := range f[7] {
			if m != "_ws.malformed" { // the bare name of the field comes after the text
				kinds[where+number.ReplaceAllString(m, "N")]++
			}
		}
	}
	return kinds, err
}

// place describes where a complaint occurred: the protocols of the packet, and the RPC procedure.
// The dissectors have bugs in single procedures. A complaint is ignored only for the procedures
// where they also make it about the kernel's packets.
//
// The protocols show which dissection failed. tshark dissects a READ reply whose data went by RDMA
// WRITE twice:
//
//	rpc:nfs            the reply itself. A complaint here means that the reply is wrong
//	rpc:nfs:rpc:nfs    again, with the bytes of the chunk put in, which tshark does wrongly
func place(f [][]string) string {
	var b strings.Builder
	if len(f[0]) > 0 {
		protocols := f[0][0]
		if i := strings.Index(protocols, "infiniband"); i >= 0 {
			protocols = protocols[i:]
		}
		b.WriteString(protocols)
	}
	if len(f[1]) > 0 && len(f[2]) > 0 && len(f[3]) > 0 && len(f[4]) > 0 {
		what := "call"
		if f[4][0] == "1" {
			what = "reply"
		}
		fmt.Fprintf(&b, " program %s version %s procedure %s %s", f[1][0], f[2][0], f[3][0], what)
	}
	b.WriteString(": ")
	return b.String()
}

// Allowed returns the kinds of complaints about the Linux kernel's own packets.
func Allowed() map[string]bool {
	set := make(map[string]bool)
	for line := range strings.Lines(kernelKinds) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			set[line] = true
		}
	}
	return set
}

// Beyond returns, sorted, the kinds that do not occur with the kernel's packets.
func Beyond(kinds map[string]int) []string {
	allowed := Allowed()
	return slices.DeleteFunc(slices.Sorted(maps.Keys(kinds)), func(k string) bool { return allowed[k] })
}

// Count returns the number of packets of a capture that a display filter selects.
func Count(ctx context.Context, pcap, filter string) (int, error) {
	lines, err := dissect(ctx, pcap, filter, "frame.number")
	return len(lines), err
}

// dissect returns the fields of the packets that a display filter selects. A field has
// as many values as it occurs in the packet.
//
// dissect asks for fields, and not for the statistics of -z expert. With these alone tshark
// dissects the packets without a tree, and then warns of bitmaps of NFS version 4 that it did not
// read.
func dissect(ctx context.Context, pcap, filter string, fields ...string) ([][][]string, error) {
	bin, err := exec.LookPath("tshark")
	if err != nil {
		return nil, err
	}
	// Preferences of whoever runs this must not change what is found.
	home, err := os.MkdirTemp("", "tshark-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(home) }()
	args := []string{
		"-n", "-r", pcap,
		// What arrives at the port of RoCEv2 is InfiniBand, and a SEND's payload is tried
		// as RPC-over-RDMA, whose dissector finds the RPC program by itself.
		"-d", "udp.port==4791,infiniband", "--enable-heuristic", "rpcrdma_infiniband",
		// Packets that a virtual interface carries get their checksums later, or never.
		"-o", "ip.check_checksum:FALSE", "-o", "udp.check_checksum:FALSE",
		// The Linux kernel's rxe sends none over IPv6.
		"-o", "udp.ignore_ipv6_zero_checksum:TRUE",
		"-Y", filter,
		"-T", "fields", "-E", "occurrence=a", "-E", "separator=" + fieldSep, "-E", "aggregator=" + valueSep,
	}
	for _, f := range fields {
		args = append(args, "-e", f)
	}
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Env = append(cmd.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+home, "WIRESHARK_CONFIG_DIR="+home, "LC_ALL=C.UTF-8")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("tshark of %s: %w: %s", pcap, err, bytes.TrimSpace(stderr.Bytes()))
	}
	var lines [][][]string
	for line := range strings.Lines(string(out)) {
		cells := strings.Split(strings.TrimRight(line, "\n"), fieldSep)
		if len(cells) != len(fields) {
			continue // cut off where tshark ended
		}
		l := make([][]string, len(cells))
		for i, c := range cells {
			if c != "" {
				l[i] = strings.Split(c, valueSep)
			}
		}
		lines = append(lines, l)
	}
	return lines, err
}

// Callbacks counts the calls of NFS version 4's callback program in the RoCE packets of a capture,
// except NULL, and their replies. Each XID counts once.
func Callbacks(ctx context.Context, pcap string) (calls, replies int, err error) {
	const program, compound = 0x40000000, 1
	lines, err := dissect(ctx, pcap,
		fmt.Sprintf("infiniband and rpc.program == %d and rpc.procedure == %d", program, compound), "rpc.msgtyp", "rpc.xid")
	seen := make(map[string]bool)
	for _, f := range lines {
		if len(f[0]) == 0 || len(f[1]) == 0 || seen[f[0][0]+f[1][0]] {
			continue
		}
		seen[f[0][0]+f[1][0]] = true
		if f[0][0] == "0" {
			calls++
		} else {
			replies++
		}
	}
	return calls, replies, err
}
