package creds

import (
	"reflect"
	"sync"
	"time"

	"github.com/jcmturner/gokrb5/v8/client"
	"github.com/jcmturner/gokrb5/v8/config"
	"github.com/jcmturner/gokrb5/v8/credentials"
	"github.com/jcmturner/gokrb5/v8/messages"
)

// cache is a credential cache whose renewable ticket is renewed before the ticket ends, by a timer.
// The next context would be too late for that: it begins when the ticket of the last one has ended,
// and a KDC does not renew a ticket that has expired (RFC 4120 section 3.3.3.1).
type cache struct {
	read func() (*credentials.CCache, error)
	of   string // names the cache in errors
	cfg  *config.Config

	mu      sync.Mutex
	renewed *credentials.CCache // nil: the KDC has renewed nothing
	timer   *time.Timer         // nil or the last one, which calls renew
	ends    time.Time           // of the ticket that timer is for; zero: timer does not run
}

// login makes a client of the cache, or of its renewed ticket if that ends later.
func (c *cache) login() (*client.Client, error) {
	cc, err := c.read()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil { // the user may have logged out
		c.renewed = nil
		return nil, err
	}
	if r := c.renewed; r != nil && reflect.DeepEqual(r.DefaultPrincipal, cc.DefaultPrincipal) &&
		expiry(r).After(expiry(cc)) {
		cc = r
	}
	cl, err := loginByCache(cc, c.of, c.cfg)
	if err == nil {
		c.schedule(cc)
	}
	return cl, err
}

// renewMargin is the least time before the end of a ticket in which a renewal is tried.
const renewMargin = 500 * time.Millisecond

// schedule has the ticket of cc renewed at half of the time that it has left. The caller has c.mu
// locked.
func (c *cache) schedule(cc *credentials.CCache) {
	tgt, ok := ticketOfKDC(cc)
	if !ok || tgt.EndTime.Equal(c.ends) || !tgt.RenewTill.After(tgt.EndTime) {
		return
	}
	left := time.Until(tgt.EndTime)
	if left < renewMargin {
		return
	}
	if c.timer != nil {
		c.timer.Stop() // of a ticket that another one has replaced
	}
	c.ends = tgt.EndTime
	c.timer = time.AfterFunc(left/2, func() { c.renew(cc) })
}

// renew renews the ticket of cc. After a failure it is tried again as long as the ticket is valid.
func (c *cache) renew(cc *credentials.CCache) {
	next, err := renew(cc, c.cfg)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ends.Equal(expiry(cc)) {
		return // another ticket is used now
	}
	c.ends = time.Time{}
	if err != nil {
		c.schedule(cc)
		return
	}
	c.renewed = next
}

// renew returns a cache with the renewed ticket of cc alone.
func renew(cc *credentials.CCache, cfg *config.Config) (*credentials.CCache, error) {
	cl, err := loginByCache(cc, "", cfg)
	if err != nil {
		return nil, err
	}
	old, _ := ticketOfKDC(cc) // loginByCache fails without it
	var tgt messages.Ticket
	if err := tgt.Unmarshal(old.Ticket); err != nil {
		return nil, err
	}
	_, rep, err := cl.TGSREQGenerateAndExchange(tgt.SName, cc.DefaultPrincipal.Realm, tgt, old.Key, true)
	if err != nil {
		return nil, err
	}
	fresh, part := *old, &rep.DecryptedEncPart
	fresh.Key, fresh.TicketFlags = part.Key, part.Flags
	fresh.AuthTime, fresh.StartTime, fresh.EndTime, fresh.RenewTill = part.AuthTime, part.StartTime, part.EndTime,
		part.RenewTill
	if fresh.Ticket, err = rep.Ticket.Marshal(); err != nil {
		return nil, err
	}
	return &credentials.CCache{
		Version: cc.Version, DefaultPrincipal: cc.DefaultPrincipal, Credentials: []*credentials.Credential{&fresh},
	}, nil
}
