package rpc

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
)

// TestDoor makes connections come and go at random. The bounds hold, and each refusal names the
// bound that is reached.
func TestDoor(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 3))
		cfg := ConnLimits{Clients: r.IntN(8), PerClient: r.IntN(5), Descriptors: r.IntN(12)}
		d := NewConnLimiter(cfg)
		type conn struct {
			a  netip.Addr
			fd bool
		}
		var in []conn
		refused := map[string]uint64{}
		for range 3000 {
			if len(in) > 0 && r.IntN(3) == 0 {
				i := r.IntN(len(in))
				d.Release(in[i].a, in[i].fd)
				in = append(in[:i], in[i+1:]...)
				continue
			}
			c := conn{netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(12))}), r.IntN(2) == 0}
			if r.IntN(2) == 0 {
				c.a = netip.AddrFrom16(c.a.As16()) // the same host
			}
			clients, own, fds := map[netip.Addr]bool{}, 0, 0
			for _, o := range in {
				clients[o.a.Unmap()] = true
				if o.a.Unmap() == c.a.Unmap() {
					own++
				}
				if o.fd {
					fds++
				}
			}
			full := map[Reason]bool{
				RefusedPerClient:   cfg.PerClient > 0 && own >= cfg.PerClient,
				RefusedClients:     cfg.Clients > 0 && own == 0 && len(clients) >= cfg.Clients,
				RefusedDescriptors: cfg.Descriptors > 0 && c.fd && fds >= cfg.Descriptors,
			}
			err := d.Admit(c.a, c.fd)
			var why *Refused
			switch {
			case errors.As(err, &why):
				refused[why.Reason.String()]++
				if !full[why.Reason] {
					t.Fatalf("seed %d: refused because of %v: %v", seed, why.Reason, err)
				}
			case full[RefusedPerClient] || full[RefusedClients] || full[RefusedDescriptors]:
				t.Fatalf("seed %d: let in beyond %+v", seed, cfg)
			default:
				in = append(in, c)
			}
		}
		st := d.Stats()
		for k, n := range refused {
			if st.Refused[k] != n {
				t.Errorf("seed %d: %d refused for %s, counted %d", seed, n, k, st.Refused[k])
			}
		}
		for _, c := range in {
			d.Release(c.a, c.fd)
		}
		if st := d.Stats(); st.Clients != 0 || st.Descriptors != 0 {
			t.Errorf("seed %d: at the end %+v", seed, st)
		}
	}
	var none *ConnLimiter
	if err := none.Admit(netip.IPv6Loopback(), true); err != nil {
		t.Error(err)
	}
	d := NewConnLimiter(ConnLimits{PerClient: 1})
	_ = d.Admit(netip.IPv6Loopback(), false)
	if err := d.Admit(netip.IPv6Loopback(), false); err == nil ||
		!strings.Contains(err.Error(), "::1 has 1 connections already") {
		t.Errorf("it says %v", err)
	}
}
