package mount

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path"
	"strings"
	"syscall"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// answered reports whether a server has answered: another attempt would then fail as well.
func answered(err error) bool {
	return errors.Is(err, fs.ErrPermission) || errors.As(err, new(nfs.Status)) || errors.As(err, new(*rpc.AcceptError)) ||
		errors.As(err, new(*rpc.DeniedError)) || errors.As(err, new(x509.UnknownAuthorityError)) ||
		errors.As(err, new(x509.HostnameError)) || errors.Is(err, client.ErrNoTLSByRDMA)
}

// explain says why a server refused a mount, in the words of mount.nfs(8), and what to do.
func explain(u client.URL, err error) error {
	var st nfs.Status
	var dns *net.DNSError
	parent := u
	parent.Path = path.Dir(u.Path)
	switch {
	case errors.As(err, &st) && (st == nfs.ErrAcces || st == nfs.ErrPerm || st == nfs.ErrWrongSec):
		return fmt.Errorf("access denied by server while mounting %s: %w\n"+
			"  the export must name this client: 'rstorectl export list' on the server shows whom it names", u, err)
	case errors.As(err, &st) && (st == nfs.ErrNoEnt || st == nfs.ErrNotDir):
		return fmt.Errorf("mounting %s failed, reason given by server: No such file or directory\n"+
			"  'rstorectl ls %s' lists what is there", u, parent)
	case errors.As(err, new(*rpc.AcceptError)):
		return fmt.Errorf("requested NFS version or transport protocol is not supported: %w\n"+
			"  leave out the option vers, or ask for one that the server serves", err)
	case errors.As(err, &dns):
		return fmt.Errorf("Failed to resolve server %s: %w", dns.Name, err) //nolint:staticcheck // mount.nfs(8) writes it so
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("Connection refused: %w\n"+ //nolint:staticcheck // as above
			"  nothing serves NFS at %s: is rstored running, and does 'rstorectl port list' there have this port?", err, u.Host)
	case errors.Is(err, syscall.ETIMEDOUT), errors.Is(err, context.DeadlineExceeded), isTimeout(err):
		return fmt.Errorf("Connection timed out: %w\n"+ //nolint:staticcheck // as above
			"  a firewall may drop packets: RDMA needs UDP port 4791 in both directions, TCP the port of %s;\n"+
			"  'rstorectl doctor %s' checks the way", err, u.Host, u)
	}
	return fmt.Errorf("mounting %s: %w", u, err)
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

// explainFUSE says why the kernel refused the mount.
func explainFUSE(err error) error {
	switch text := err.Error(); {
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES):
		return fmt.Errorf("mounting by FUSE: %w\n  in a container it needs /dev/fuse and the capability SYS_ADMIN, or a "+
			"user namespace", err)
	case strings.Contains(text, "executable file not found"):
		return errors.New("fusermount3 is missing; install the package fuse3, or be root")
	case strings.Contains(text, "fusermount exited"):
		return fmt.Errorf("mounting by FUSE: %s\n  fusermount3 has said why above: the directory must be yours, you "+
			"need permission for /dev/fuse (usually mode 0666), and allow_other needs the line "+
			"user_allow_other in /etc/fuse.conf", strings.TrimSpace(text))
	}
	return fmt.Errorf("mounting by FUSE: %w", err)
}
