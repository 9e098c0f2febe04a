package nfs4

import (
	"strings"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// An export can name other servers (nfs.Export.Locations). Either they have the same data as this
// server: replicas, or other addresses of this one. Or they have the data instead of this server.
// Then the file system is absent here (RFC 8881 section 11.3), and the client is referred to them:
//
//	client                                    server
//	PUTROOTFH, LOOKUP "data", GETFH    --->
//	                                  <---    MOVED, by the GETFH
//	PUTROOTFH, LOOKUP "data",
//	GETATTR{fsid, fs_locations}        --->
//	                                  <---    the other servers
//
// LOOKUP may lead to the root of an absent file system, and PUTFH takes its handles. GETATTR and
// GETFH then behave as shown. Every other operation with such a file handle is MOVED. The same
// applies to handles from before the file system moved. State is not transferred.

// ofAbsent are the attributes that an absent file system has. By asking for one of asksAbsent a
// client shows that it knows of absent file systems (RFC 8881 section 11.4.1).
var (
	ofAbsent   = BitmapOf(AttrFSID, AttrRdattrError, AttrFSLocations, AttrMountedOn, AttrFSLocInfo)
	asksAbsent = BitmapOf(AttrRdattrError, AttrFSLocations, AttrFSLocInfo)
)

// moved reports whether the object is of an absent file system.
func (o *object) moved() bool { return o.x != nil && o.x.Moved }

// allowedIfMoved reports whether an operation is executed although the current file handle is that
// of an absent file system (RFC 8881 section 11.3). That is so for operations that need no file
// handle, and for OFFLOAD_*, which must not return MOVED (RFC 7862 section 11.2).
func allowedIfMoved(op uint32) bool {
	switch op {
	case OpGetAttr, OpOffloadCancel, OpOffloadStatus:
		return true
	}
	return !table[op].is(needsHandle)
}

// absent fills in the subject of an object of an absent file system. The status is MOVED if the
// client wants none of asksAbsent.
func (k *compound) absent(s *subject, want Bitmap) nfs.Status {
	s.fault, s.at = nfs.ErrMoved, k.s.pseudo().byExport[s.x.ID]
	if want.and(asksAbsent).empty() {
		return nfs.ErrMoved
	}
	return nfs.OK
}

// encodeLocations appends an fs_locations (RFC 8881 section 11.16): the path of the file system in
// the pseudo file system, and the locations of its export.
//
//	fs_root    pathname4
//	locations  uint32 number | { servers: uint32 number | utf8str ... | rootpath: pathname4 } ...
func encodeLocations(e *xdr.Encoder, s *subject) {
	encodeEach(e, s, e.String)
}

// encodeEach appends the path of the file system, and its locations. server appends one server.
func encodeEach(e *xdr.Encoder, s *subject, server func(name string)) {
	encodeFSRoot(e, s)
	list := s.locations()
	e.Uint32(uint32(len(list)))
	for i := range list {
		e.Uint32(uint32(len(list[i].Servers)))
		for _, name := range list[i].Servers {
			server(name)
		}
		encodePath(e, list[i].Path)
	}
}

// Parts of fs_locations_info (RFC 8881 section 11.17).
const (
	currencyUnknown = -1   // how old the data is, in seconds
	locationsValid  = 1800 // how long a client may cache the locations, in seconds
	// locationInfoLen is the length of fls_info in bytes: two of flags, six of classes, four of ranks
	// and orders. All are zero, because nothing is known of the other server.
	locationInfoLen = 12
)

// encodeLocationsInfo appends an fs_locations_info4. It has the same servers as fs_locations.
//
//	uint32 flags, 0 | int32 valid for | fs_root: pathname4 |
//	uint32 number | { entries: uint32 number | { int32 currency | info<> | server } ... |
//	                  rootpath: pathname4 } ...
func encodeLocationsInfo(e *xdr.Encoder, s *subject) {
	e.Uint32s(0, locationsValid)
	encodeEach(e, s, func(server string) {
		unknown := int32(currencyUnknown)
		e.Uint32(uint32(unknown))
		e.Opaque(make([]byte, locationInfoLen))
		e.String(server)
	})
}

func (s *subject) locations() []nfs.Location {
	if s.x == nil {
		return nil
	}
	return s.x.Locations
}

// encodeFSRoot appends the pathname4 of the subject's file system in the pseudo file system, which
// itself is at the root.
func encodeFSRoot(e *xdr.Encoder, s *subject) {
	at := "/"
	if s.x != nil {
		if n := s.k.s.pseudo().byExport[s.x.ID]; n != nil {
			at = n.path
		}
	}
	encodePath(e, at)
}

// encodePath appends a pathname4: the components of an absolute path.
func encodePath(e *xdr.Encoder, path string) {
	names := strings.FieldsFunc(path, func(c rune) bool { return c == '/' })
	e.Uint32(uint32(len(names)))
	for _, name := range names {
		e.String(name)
	}
}
