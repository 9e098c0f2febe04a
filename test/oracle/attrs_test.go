package oracle

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"testing"

	x4 "github.com/buildbarn/go-xdr/pkg/protocols/nfsv4"
)

// value reads an attribute's value.
type value func(io.Reader) (any, error)

// of is a value that go-xdr returns.
func of[T any](f func(io.Reader) (T, int64, error)) value {
	return func(r io.Reader) (any, error) { v, _, err := f(r); return v, err }
}

// into is a value that go-xdr fills in.
func into[T any](f func(io.Reader, *T) (int64, error)) value {
	return func(r io.Reader) (any, error) { var v T; _, err := f(r, &v); return v, err }
}

// values are the attributes that go-xdr knows and that can be read.
var values = map[int]value{
	x4.FATTR4_SUPPORTED_ATTRS: of(x4.ReadFattr4SupportedAttrs), x4.FATTR4_TYPE: of(x4.ReadFattr4Type),
	x4.FATTR4_FH_EXPIRE_TYPE: of(x4.ReadFattr4FhExpireType), x4.FATTR4_CHANGE: of(x4.ReadFattr4Change),
	x4.FATTR4_SIZE: of(x4.ReadFattr4Size), x4.FATTR4_LINK_SUPPORT: of(x4.ReadFattr4LinkSupport),
	x4.FATTR4_SYMLINK_SUPPORT: of(x4.ReadFattr4SymlinkSupport), x4.FATTR4_NAMED_ATTR: of(x4.ReadFattr4NamedAttr),
	x4.FATTR4_FSID: into(x4.ReadFattr4Fsid), x4.FATTR4_UNIQUE_HANDLES: of(x4.ReadFattr4UniqueHandles),
	x4.FATTR4_LEASE_TIME: of(x4.ReadFattr4LeaseTime), x4.FATTR4_RDATTR_ERROR: of(x4.ReadFattr4RdattrError),
	x4.FATTR4_FILEHANDLE: of(x4.ReadFattr4Filehandle), x4.FATTR4_SUPPATTR_EXCLCREAT: of(x4.ReadFattr4SuppattrExclcreat),
	x4.FATTR4_ACL: of(x4.ReadFattr4Acl), x4.FATTR4_ACLSUPPORT: of(x4.ReadFattr4Aclsupport),
	x4.FATTR4_ARCHIVE: of(x4.ReadFattr4Archive), x4.FATTR4_CANSETTIME: of(x4.ReadFattr4Cansettime),
	x4.FATTR4_CASE_INSENSITIVE: of(x4.ReadFattr4CaseInsensitive),
	x4.FATTR4_CASE_PRESERVING:  of(x4.ReadFattr4CasePreserving),
	x4.FATTR4_CHOWN_RESTRICTED: of(x4.ReadFattr4ChownRestricted), x4.FATTR4_FILEID: of(x4.ReadFattr4Fileid),
	x4.FATTR4_FILES_AVAIL: of(x4.ReadFattr4FilesAvail), x4.FATTR4_FILES_FREE: of(x4.ReadFattr4FilesFree),
	x4.FATTR4_FILES_TOTAL: of(x4.ReadFattr4FilesTotal), x4.FATTR4_FS_LOCATIONS: into(x4.ReadFattr4FsLocations),
	x4.FATTR4_HIDDEN: of(x4.ReadFattr4Hidden), x4.FATTR4_HOMOGENEOUS: of(x4.ReadFattr4Homogeneous),
	x4.FATTR4_MAXFILESIZE: of(x4.ReadFattr4Maxfilesize), x4.FATTR4_MAXLINK: of(x4.ReadFattr4Maxlink),
	x4.FATTR4_MAXNAME: of(x4.ReadFattr4Maxname), x4.FATTR4_MAXREAD: of(x4.ReadFattr4Maxread),
	x4.FATTR4_MAXWRITE: of(x4.ReadFattr4Maxwrite), x4.FATTR4_MIMETYPE: of(x4.ReadFattr4Mimetype),
	x4.FATTR4_MODE: of(x4.ReadFattr4Mode), x4.FATTR4_NO_TRUNC: of(x4.ReadFattr4NoTrunc),
	x4.FATTR4_NUMLINKS: of(x4.ReadFattr4Numlinks), x4.FATTR4_OWNER: of(x4.ReadFattr4Owner),
	x4.FATTR4_OWNER_GROUP: of(x4.ReadFattr4OwnerGroup), x4.FATTR4_QUOTA_AVAIL_HARD: of(x4.ReadFattr4QuotaAvailHard),
	x4.FATTR4_QUOTA_AVAIL_SOFT: of(x4.ReadFattr4QuotaAvailSoft), x4.FATTR4_QUOTA_USED: of(x4.ReadFattr4QuotaUsed),
	x4.FATTR4_RAWDEV: into(x4.ReadFattr4Rawdev), x4.FATTR4_SPACE_AVAIL: of(x4.ReadFattr4SpaceAvail),
	x4.FATTR4_SPACE_FREE: of(x4.ReadFattr4SpaceFree), x4.FATTR4_SPACE_TOTAL: of(x4.ReadFattr4SpaceTotal),
	x4.FATTR4_SPACE_USED: of(x4.ReadFattr4SpaceUsed), x4.FATTR4_SYSTEM: of(x4.ReadFattr4System),
	x4.FATTR4_TIME_ACCESS: into(x4.ReadFattr4TimeAccess), x4.FATTR4_TIME_BACKUP: into(x4.ReadFattr4TimeBackup),
	x4.FATTR4_TIME_CREATE: into(x4.ReadFattr4TimeCreate), x4.FATTR4_TIME_DELTA: into(x4.ReadFattr4TimeDelta),
	x4.FATTR4_TIME_METADATA: into(x4.ReadFattr4TimeMetadata), x4.FATTR4_TIME_MODIFY: into(x4.ReadFattr4TimeModify),
	x4.FATTR4_MOUNTED_ON_FILEID: of(x4.ReadFattr4MountedOnFileid), x4.FATTR4_DACL: into(x4.ReadFattr4Dacl),
	x4.FATTR4_SACL: into(x4.ReadFattr4Sacl), x4.FATTR4_CHANGE_POLICY: into(x4.ReadFattr4ChangePolicy),
	x4.FATTR4_FS_STATUS: into(x4.ReadFattr4FsStatus), x4.FATTR4_FS_LAYOUT_TYPES: of(x4.ReadFattr4FsLayoutTypes),
	x4.FATTR4_LAYOUT_TYPES: of(x4.ReadFattr4LayoutTypes), x4.FATTR4_LAYOUT_BLKSIZE: of(x4.ReadFattr4LayoutBlksize),
	x4.FATTR4_LAYOUT_ALIGNMENT:  of(x4.ReadFattr4LayoutAlignment),
	x4.FATTR4_FS_LOCATIONS_INFO: into(x4.ReadFattr4FsLocationsInfo),
	x4.FATTR4_FS_CHARSET_CAP:    of(x4.ReadFattr4FsCharsetCap), x4.FATTR4_CLONE_BLKSIZE: of(x4.ReadFattr4CloneBlksize),
	x4.FATTR4_SPACE_FREED: of(x4.ReadFattr4SpaceFreed), x4.FATTR4_CHANGE_ATTR_TYPE: of(x4.ReadFattr4ChangeAttrType),
	x4.FATTR4_SEC_LABEL: into(x4.ReadFattr4SecLabel), openArguments: readOpenArguments,
}

// openArguments is open_arguments of RFC 9754, which go-xdr does not know: five bitmaps.
const openArguments = 86

func readOpenArguments(r io.Reader) (any, error) {
	var list [5][]uint32
	for i := range list {
		var err error
		if list[i], _, err = x4.ReadBitmap4(r); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// beyond are attributes that go-xdr does not know: mode_umask, xattr_support, time_deleg_access and
// time_deleg_modify.
var beyond = []int{81, 82, 84, 85}

func bitmap(attrs ...int) (b []uint32) {
	for _, n := range attrs {
		for len(b) <= n/32 {
			b = append(b, 0)
		}
		b[n/32] |= 1 << (n % 32)
	}
	return b
}

// numbers are the attributes of a bitmap.
func numbers(b []uint32) (list []int) {
	for i := range 32 * len(b) {
		if b[i/32]&(1<<(i%32)) != 0 {
			list = append(list, i)
		}
	}
	return list
}

// attributes takes a fattr4 apart to its last byte.
func attributes(t testing.TB, a *x4.Fattr4) map[int]any {
	t.Helper()
	out := make(map[int]any)
	r := bytes.NewReader(a.AttrVals)
	for _, n := range numbers(a.Attrmask) {
		read := values[n]
		if read == nil {
			t.Fatalf("attribute %d", n)
		}
		v, err := read(r)
		if err != nil {
			t.Fatalf("attribute %d: %v", n, err)
		}
		out[n] = v
	}
	if r.Len() != 0 {
		t.Errorf("%d bytes are left of %x", r.Len(), a.AttrVals)
	}
	return out
}

// fattr makes a fattr4 of values in the order of their numbers, which go-xdr writes.
func fattr(t testing.TB, mask []uint32, vals ...io.WriterTo) x4.Fattr4 {
	t.Helper()
	f := x4.Fattr4{Attrmask: mask}
	for _, v := range vals {
		f.AttrVals = append(f.AttrVals, bytesOf(t, v)...)
	}
	return f
}

// writes is a function of go-xdr as something that it writes.
type writes func(io.Writer) (int64, error)

func (f writes) WriteTo(w io.Writer) (int64, error) { return f(w) }

func uint64Of(v uint64) writes {
	return func(w io.Writer) (int64, error) { return x4.WriteUint64T(w, v) }
}

func uint32Of(v uint32) writes {
	return func(w io.Writer) (int64, error) { return x4.WriteUint32T(w, v) }
}

func (s *sess) getAttr(fh []byte, attrs ...int) map[int]any {
	s.t.Helper()
	get := get[*x4.Getattr4res_NFS4_OK](s.t,
		s.one(putFH(fh), &x4.NfsArgop4_OP_GETATTR{Opgetattr: x4.Getattr4args{AttrRequest: bitmap(attrs...)}}))
	return attributes(s.t, &get.Resok4.ObjAttributes)
}

// TestAttributes: every attribute that the server has, of every kind of object, is one that
// go-xdr reads to the last byte, and the values are what they have to be.
func TestAttributes(t *testing.T) {
	r := newRig(t)
	for _, minor := range []uint32{1, 2} {
		s := r.session(minor, fmt.Sprint("attributes", minor))
		dir := s.handle("data")
		fh, _ := s.open(dir, fmt.Sprint("file", minor))
		root := s.handle()
		sup := s.getAttr(fh, x4.FATTR4_SUPPORTED_ATTRS)[x4.FATTR4_SUPPORTED_ATTRS].([]uint32)
		var all []int
		for _, n := range numbers(sup) {
			switch {
			case (slices.Contains(beyond, n) || n == openArguments) && minor < 2:
				t.Errorf("attribute %d in version 4.%d", n, minor)
			case !slices.Contains(beyond, n) && n != x4.FATTR4_TIME_ACCESS_SET && n != x4.FATTR4_TIME_MODIFY_SET:
				all = append(all, n)
			}
		}
		if len(all) < 45 {
			t.Errorf("%d attributes", len(all))
		}
		for i, h := range [][]byte{fh, dir, root} {
			a := s.getAttr(h, all...)
			typ := x4.NF4DIR
			if i == 0 {
				typ = x4.NF4REG
			}
			for n, want := range map[int]any{
				x4.FATTR4_TYPE: typ, x4.FATTR4_FILEHANDLE: h, x4.FATTR4_LEASE_TIME: uint32(90), x4.FATTR4_RDATTR_ERROR: x4.NFS4_OK,
				x4.FATTR4_FH_EXPIRE_TYPE: uint32(0), x4.FATTR4_UNIQUE_HANDLES: true, x4.FATTR4_NAMED_ATTR: false,
			} {
				if fmt.Sprint(a[n]) != fmt.Sprint(want) {
					t.Errorf("object %d, attribute %d: %v instead of %v", i, n, a[n], want)
				}
			}
			if i < 2 {
				if o := a[x4.FATTR4_OWNER].(string); o != "0" {
					t.Errorf("owner %q", o)
				}
				if f := a[x4.FATTR4_FSID].(x4.Fsid4); f == (x4.Fsid4{}) {
					t.Error("no file system")
				}
				if tm := a[x4.FATTR4_TIME_MODIFY].(x4.Nfstime4); tm.Seconds == 0 || tm.Nseconds > 999999999 {
					t.Errorf("%+v", tm)
				}
			}
			for _, n := range all { // each alone
				if one := s.getAttr(h, n); len(one) > 1 {
					t.Errorf("attribute %d: %v", n, one)
				}
			}
		}
		// What cannot be read is refused; what nobody knows is left out.
		s.fails(x4.NFS4ERR_INVAL, putFH(fh),
			&x4.NfsArgop4_OP_GETATTR{Opgetattr: x4.Getattr4args{AttrRequest: bitmap(x4.FATTR4_TIME_ACCESS_SET)}})
		if a := s.getAttr(fh, x4.FATTR4_ARCHIVE, x4.FATTR4_MIMETYPE, 100); len(a) != 0 {
			t.Errorf("%v", a)
		}
	}
}
