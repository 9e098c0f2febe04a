package cephfs

import (
	"errors"
	"time"
)

// ErrNotBuilt is the error of a program that was built without the tag cephfs.
var ErrNotBuilt = errors.New("cephfs: this program was built without CephFS (tag cephfs)")

// Options say which filesystem is opened, and how. What they leave out is as for every program of
// Ceph: the environment CEPH_CONF and CEPH_ARGS, /etc/ceph/ceph.conf,
// /etc/ceph/ceph.client.admin.keyring.
type Options struct {
	// Conf is the path of ceph.conf; "" takes the ones that Ceph looks for.
	Conf string
	// ID is the client's name without "client."; "" is admin.
	ID string
	// Keyring is the path of the client's key; "" takes what Conf says.
	Keyring string
	// Filesystem is the name of the filesystem; "" is the only one, or the default one.
	Filesystem string
	// Root is the directory of the filesystem that becomes the root of the store; "" is /.
	Root string
	// Cache lets libcephfs cache data (client_oc). Without it, each read and write goes to the OSDs:
	// NFS clients cache by themselves, and the memory of the gateway is for more clients.
	Cache bool
	// Session names the mount in the cluster. Open ends the session of an earlier mount of that name,
	// which was killed, with its locks and delegations. "" is a mount that nobody can end so.
	Session string
	// Delegations is how long a user of Lease has for releasing a lease that is broken. libcephfs ends
	// the mount if that takes longer. 0: there are no leases.
	Delegations time.Duration
	// Lost is called once when the mount was ended by the cluster, by Reset or because of Delegations:
	// all calls fail from then on. It may be nil.
	Lost func(error)
	// Set are further settings of the client, as in ceph.conf.
	Set map[string]string
}
