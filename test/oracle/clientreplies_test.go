package oracle

import (
	"context"
	"errors"
	"testing"
	"time"

	x4 "github.com/buildbarn/go-xdr/pkg/protocols/nfsv4"

	"github.com/rstored/rstored/nfs/client"
)

// TestClientTakesAnyReply: replies that this server does not give, but another may.
func TestClientTakesAnyReply(t *testing.T) {
	nobody := x4.Nfsace4{Who: "EVERYONE@", AccessMask: 1}
	id := x4.Stateid4{Seqid: 1, Other: [12]byte{9}}
	delegations := []x4.OpenDelegation4{
		&x4.OpenDelegation4_OPEN_DELEGATE_NONE{},
		&x4.OpenDelegation4_OPEN_DELEGATE_READ{Read: x4.OpenReadDelegation4{Stateid: id, Permissions: nobody}},
		&x4.OpenDelegation4_OPEN_DELEGATE_WRITE{Write: x4.OpenWriteDelegation4{
			Stateid: id, Recall: true, SpaceLimit: &x4.NfsSpaceLimit4_NFS_LIMIT_SIZE{Filesize: 5}, Permissions: nobody,
		}},
		&x4.OpenDelegation4_OPEN_DELEGATE_WRITE{Write: x4.OpenWriteDelegation4{
			Stateid: id, SpaceLimit: &x4.NfsSpaceLimit4_NFS_LIMIT_BLOCKS{ModBlocks: x4.NfsModifiedLimit4{
				NumBlocks:     1,
				BytesPerBlock: 2,
			}},
		}},
		&x4.OpenDelegation4_OPEN_DELEGATE_NONE_EXT{OdWhynone: &x4.OpenNoneDelegation4_WND4_CONTENTION{
			OndServerWillPushDeleg: true,
		}},
		&x4.OpenDelegation4_OPEN_DELEGATE_NONE_EXT{OdWhynone: &x4.OpenNoneDelegation4_WND4_RESOURCE{}},
		&x4.OpenDelegation4_OPEN_DELEGATE_NONE_EXT{OdWhynone: &x4.OpenNoneDelegation4_default{OndWhy: x4.WND4_IS_DIR}},
	}
	for i, d := range delegations {
		c, k := connect(t, client.Version42)
		k.change = func(res *x4.Compound4res) {
			res.Tag = "a tag that was not sent"
			for _, op := range res.Resarray {
				switch op := op.(type) {
				case *x4.NfsResop4_OP_OPEN:
					if ok, fine := op.Opopen.(*x4.Open4res_NFS4_OK); fine {
						ok.Resok4.Delegation = d
						ok.Resok4.Attrset = []uint32{1, 2, 3, 4, 5}
						ok.Resok4.Rflags = 0x2c
					}
				case *x4.NfsResop4_OP_EXCHANGE_ID:
					if ok, fine := op.OpexchangeId.(*x4.ExchangeId4res_NFS4_OK); fine {
						ok.EirResok4.EirServerImplId = nil
						ok.EirResok4.EirServerScope = nil
						ok.EirResok4.EirFlags |= x4.EXCHGID4_FLAG_USE_PNFS_MDS
					}
				case *x4.NfsResop4_OP_CREATE_SESSION:
					if ok, fine := op.OpcreateSession.(*x4.CreateSession4res_NFS4_OK); fine {
						ok.CsrResok4.CsrForeChanAttrs.CaRdmaIrd = []uint32{3}
						ok.CsrResok4.CsrBackChanAttrs.CaRdmaIrd = []uint32{3}
						ok.CsrResok4.CsrFlags = x4.CREATE_SESSION4_FLAG_PERSIST
					}
				case *x4.NfsResop4_OP_SEQUENCE:
					if ok, fine := op.Opsequence.(*x4.Sequence4res_NFS4_OK); fine {
						ok.SrResok4.SrTargetHighestSlotid = 1
						ok.SrResok4.SrStatusFlags |= x4.SEQ4_STATUS_LEASE_MOVED | x4.SEQ4_STATUS_DEVID_CHANGED
					}
				}
			}
		}
		ctx := context.Background()
		f, err := c.CreateFile(ctx, "/data/f", 0o644)
		if err != nil {
			t.Fatalf("delegation %d: %v", i, err)
		}
		if _, err := f.WriteAt([]byte("some data"), 0); err != nil {
			t.Errorf("delegation %d: %v", i, err)
		}
		b := make([]byte, 9)
		if _, err := f.ReadAt(b, 0); err != nil || string(b) != "some data" {
			t.Errorf("delegation %d: %q, %v", i, b, err)
		}
		if err := f.Close(); err != nil {
			t.Errorf("delegation %d: %v", i, err)
		}
		_ = c.Close()
	}
}

// TestClientHeedsNotices: the flags by which a server tells a client that it has lost
// something, one of each kind. The client asks for what it has, frees what is not there any
// more, opens it again, and does so once.
func TestClientHeedsNotices(t *testing.T) {
	for _, flag := range []uint32{
		x4.SEQ4_STATUS_EXPIRED_ALL_STATE_REVOKED, x4.SEQ4_STATUS_EXPIRED_SOME_STATE_REVOKED,
		x4.SEQ4_STATUS_ADMIN_STATE_REVOKED,
		x4.SEQ4_STATUS_RECALLABLE_STATE_REVOKED, x4.SEQ4_STATUS_RESTART_RECLAIM_NEEDED,
		x4.SEQ4_STATUS_LEASE_MOVED, x4.SEQ4_STATUS_CB_PATH_DOWN,
	} {
		heeded := flag != x4.SEQ4_STATUS_LEASE_MOVED && flag != x4.SEQ4_STATUS_CB_PATH_DOWN
		c, k := connect(t, client.Version41)
		ctx := context.Background()
		f, err := c.CreateFile(ctx, "/data/f", 0o644)
		if err != nil {
			t.Fatal(err)
		}
		g, err := c.OpenShare(ctx, "/data/f", client.ShareBoth, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.TryLock(0, 10, true); err != nil {
			t.Fatal(err)
		}
		// The server loses it all without a word; then it says so, with every reply.
		k.mu.Lock()
		k.r.s.State().DropExport(1)
		tested, freed := make(chan struct{}, 100), 0
		k.change = func(res *x4.Compound4res) {
			for _, op := range res.Resarray {
				switch op := op.(type) {
				case *x4.NfsResop4_OP_SEQUENCE:
					if ok, fine := op.Opsequence.(*x4.Sequence4res_NFS4_OK); fine {
						ok.SrResok4.SrStatusFlags |= flag
					}
				case *x4.NfsResop4_OP_TEST_STATEID:
					tested <- struct{}{}
				case *x4.NfsResop4_OP_FREE_STATEID:
					freed++
				}
			}
		}
		k.mu.Unlock()
		for range 5 {
			if _, err := c.GetAttr(ctx, f.Node().Handle); err != nil {
				t.Error(err)
			}
		}
		if heeded {
			select {
			case <-tested:
			case <-time.After(10 * time.Second):
				t.Fatalf("flag %x: no TEST_STATEID", flag)
			}
		}
		if _, err := g.WriteAt([]byte("x"), 0); err != nil {
			t.Errorf("flag %x: a file without locks: %v", flag, err)
		}
		if _, err := f.WriteAt([]byte("x"), 0); heeded && !errors.Is(err, client.ErrLockLost) {
			t.Errorf("flag %x: a write under a lock that is lost: %v", flag, err)
		}
		if err := f.Close(); err != nil {
			t.Errorf("flag %x: %v", flag, err)
		}
		if err := g.Close(); err != nil {
			t.Errorf("flag %x: %v", flag, err)
		}
		k.mu.Lock()
		if more := len(tested); more > 3 || heeded != (freed > 0) {
			t.Errorf("flag %x: %d tests more, %d stateids freed", flag, more, freed)
		}
		k.mu.Unlock()
		_ = c.Close()
	}
}
