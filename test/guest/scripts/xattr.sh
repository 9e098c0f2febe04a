# Extended attributes of users, by version 4.2, one of LARGE bytes.
m
cd $M
cat >/tmp/x.py <<'P'
import errno, os, sys

def fails(want, call, *args, **more):
    try:
        call(*args, **more)
    except OSError as e:
        assert e.errno == want, (args[:2], e)
        return
    raise AssertionError((args[:2], "not refused"))

f = "file"
def names(of):
    # The client lists the ACL among them.
    return [n for n in os.listxattr(of) if n.startswith("user.")]
open(f, "w").write("content")
os.mkdir("dir")
assert names(f) == [], names(f)
os.setxattr(f, "user.one", b"1")
os.setxattr(f, "user.one", b"one", os.XATTR_REPLACE)
os.setxattr(f, "user.two", b"", os.XATTR_CREATE)
os.setxattr("dir", "user.of a directory", b"d")
fails(errno.EEXIST, os.setxattr, f, "user.two", b"x", os.XATTR_CREATE)
fails(errno.ENODATA, os.setxattr, f, "user.three", b"x", os.XATTR_REPLACE)
fails(errno.ENODATA, os.getxattr, f, "user.three")
fails(errno.ENODATA, os.removexattr, f, "user.three")
P
python3 /tmp/x.py
forget
cat >/tmp/y.py <<'P'
import os
def names(of):
    return [n for n in os.listxattr(of) if n.startswith("user.")]
assert os.getxattr("file", "user.one") == b"one"
assert os.getxattr("file", "user.two") == b""
assert sorted(names("file")) == ["user.one", "user.two"], names("file")
assert names("dir") == ["user.of a directory"], names("dir")
assert os.getxattr("dir", "user.of a directory") == b"d"
os.removexattr("file", "user.two")
for i in range(20):
    os.setxattr("file", "user.many-%02d" % i, b"v%d" % i)
assert len(names("file")) == 21, names("file")
os.setxattr("file", "user.large", b"l" * int(os.environ["LARGE"]))
P
python3 /tmp/y.py
forget
cat >/tmp/z.py <<'P'
import ctypes, os
def names(of):
    return [n for n in os.listxattr(of) if n.startswith("user.")]
libc = ctypes.CDLL(None, use_errno=True)
# The length first, as tools do: the kernel has room for any value then. With too
# little room it registers too small a Reply chunk over RDMA, and finds EIO.
n = libc.getxattr(b"file", b"user.large", None, 0)
assert n == int(os.environ["LARGE"]), (n, os.strerror(ctypes.get_errno()))
b = ctypes.create_string_buffer(n)
n = libc.getxattr(b"file", b"user.large", b, n)
assert b.raw[:n] == b"l" * int(os.environ["LARGE"]), (n, os.strerror(ctypes.get_errno()))
assert os.getxattr("file", "user.many-07") == b"v7"
assert len(names("file")) == 22, names("file")
os.setgroups([]); os.setgid(1000); os.setuid(1000)
assert os.getxattr("file", "user.one") == b"one"
for call in (lambda: os.setxattr("file", "user.no", b""), lambda: os.removexattr("file", "user.one")):
    try:
        call()
    except PermissionError:
        continue
    raise AssertionError("not refused")
P
python3 /tmp/z.py
forget
if small=$(python3 -c 'import os; print(len(os.getxattr("file", "user.large")))' 2>&1); then
	is "length by a small buffer first" "$small" "$LARGE"
else
	say "by a small buffer first: ${small##*$'\n'}"
	[ "$LARGE" -gt 4096 ] && [ -z "${CARRIER:-}" ] || die "not with little room to start with"
fi
tell changed
await seen
forget
is "what the host set" "$(python3 -c 'import os; print(os.getxattr("file", "user.host").decode())')" host
cd /
umount $M
