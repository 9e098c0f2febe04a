package nfs4

import (
	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
)

// ofQuota are the attributes of the caller's quota. Where that has no limit it is the file
// system that ends first (RFC 8881 section 5.8.2).
var ofQuota = bits4(attrQuotaHard, attrQuotaSoft, attrQuotaUsed)

// quotasOf is the store of an export, nil if that has no quotas.
func quotasOf(x *nfs.Export) blockstore.Quotas {
	if x == nil || !x.FS.Limits().Quotas {
		return nil
	}
	q, _ := x.FS.(blockstore.Quotas)
	return q
}
