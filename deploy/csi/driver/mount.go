package driver

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// Mounter is the part of the host that the Node service uses. Its methods may be called from any
// goroutine.
type Mounter interface {
	// Mount mounts source at target, an existing directory. If it takes longer than ctx, it returns
	// ctx's error and continues in the background. It calls finished at its end.
	Mount(ctx context.Context, m Mount, finished func()) error
	// Unmount removes the uppermost mount at target. finished is as in Mount.
	Unmount(ctx context.Context, target string, finished func()) error
	// Mounts lists the mounts of this mount namespace. A later one covers an earlier one.
	Mounts() ([]Mounted, error)
	// Usage returns the result of statfs for a mounted directory. finished is as in Mount.
	Usage(ctx context.Context, path string, finished func()) (Usage, error)
	// Grant gives a mounted directory to a group: its members share the directory and the new files
	// in it. finished is as in Mount.
	Grant(ctx context.Context, path string, gid uint32, finished func()) error
}

// Mount is what to mount where.
type Mount struct {
	Server  string // name or address; Mount puts its address into the options
	Source  string // server:/path; a URL for FUSE
	Target  string
	Options Options
	FUSE    bool // by rstorectl mount
}

// Mounted is a mount.
type Mounted struct {
	Source, Target, Type string
	ReadOnly             bool
}

// Usage describes the file system of a volume, in bytes and in inodes.
type Usage struct {
	TotalBytes, AvailBytes, UsedBytes uint64
	TotalFiles, FreeFiles, UsedFiles  uint64
}

// Options are the arguments of mount(2): flags of the virtual file system, and the string for the
// file system.
type Options struct {
	Flags []string // by their names in fstab(5)
	Data  []string

	transport string
	port      uint16
}

// flagOptions are options that mount(2) takes as flags.
var flagOptions = map[string]bool{
	"ro": true, "noatime": true, "nodiratime": true, "relatime": true, "strictatime": true, "lazytime": true,
	"nodev": true, "noexec": true, "nosuid": true, "sync": true, "dirsync": true,
}

// without are the options that mean the default, or that only programs which read fstab(5) use.
var without = map[string]bool{
	"defaults": true, "rw": true, "async": true, "atime": true, "diratime": true, "dev": true, "exec": true, "suid": true,
	"_netdev": true, "auto": true, "noauto": true, "nofail": true,
}

// mountOptions returns the options for a place: those of the StorageClass, and the transport. The
// defaults are RDMA and, for the kernel's client, version 4.2. A mount by FUSE has the transport
// and the port in its URL, and asks the server for the version.
func mountOptions(p place, flags []string, readOnly bool) (o Options, err error) {
	transport, port, version := p.transport, p.port, ""
	nolock := false
	for _, f := range strings.Split(strings.Join(flags, ","), ",") {
		f = strings.TrimSpace(f)
		key, value, _ := strings.Cut(f, "=")
		carrier := ""
		switch {
		case f == "" || without[f] || strings.HasPrefix(f, "x-"):
			continue
		case strings.ContainsAny(f, "\x00\n\\"):
			return o, fmt.Errorf("mount option %q cannot be one", f)
		case flagOptions[f]:
			readOnly = readOnly || f == "ro"
			if f != "ro" {
				o.Flags = append(o.Flags, f)
			}
			continue
		case f == transportRDMA || key == "proto" && (value == "rdma" || value == "rdma6"):
			carrier = transportRDMA
		case f == transportTCP || key == "proto" && (value == "tcp" || value == "tcp6"):
			carrier = transportTCP
		case key == "proto" || f == "udp":
			return o, fmt.Errorf("mount option %q: use rdma or tcp", f)
		case key == "port":
			n, err := parsePort("mount option port", value)
			if err != nil {
				return o, err
			}
			if p.port != 0 && p.port != n {
				return o, fmt.Errorf("mount option %q contradicts %s %d", f, paramPort, p.port)
			}
			port = n
			continue
		case key == "vers" || key == "nfsvers":
			version = value
			continue
		case f == "v3" || f == "v4" || strings.HasPrefix(f, "v4."):
			version = f[1:]
			continue
		case key == "addr" || key == "clientaddr" || key == "source":
			return o, fmt.Errorf("mount option %q is set by the driver", f)
		case f == "bg" || f == "fg" || key == "retry":
			return o, fmt.Errorf(
				"mount option %q is for mount(8), which is not used: a mount that fails is tried again by Kubernetes", f)
		case f == "nolock" || key == "local_lock" && value == "all":
			nolock = true
		}
		if carrier != "" {
			if p.transport != "" && p.transport != carrier {
				return o, fmt.Errorf("mount option %q contradicts %s %s", f, paramTransport, p.transport)
			}
			transport = carrier
			continue
		}
		o.Data = append(o.Data, f)
	}
	if transport == "" {
		transport = transportRDMA
	}
	if port == 0 {
		port = 2049
		if transport == transportRDMA {
			port = 20049
		}
	}
	if version, err = p.checkVersion(version, nolock); err != nil {
		return o, err
	}
	if readOnly {
		o.Flags = append(o.Flags, "ro")
	}
	o.transport, o.port = transport, port
	if !p.fuse {
		o.Data = append([]string{transport, "port=" + strconv.Itoa(int(port)), "vers=" + version}, o.Data...)
	} else if version != "" {
		o.Data = append([]string{"vers=" + version}, o.Data...)
	}
	return o, nil
}

// checkVersion returns the version of NFS to mount with.
func (p place) checkVersion(version string, nolock bool) (string, error) {
	switch version {
	case "":
		if p.fuse {
			return "", nil
		}
		return "4.2", nil
	case "4.2", "4.1":
		return version, nil
	case "4.0", "4":
		if p.fuse {
			return "", fmt.Errorf("mount option vers=%s: use 4.2, 4.1 or 3 with %s %s", version, paramMount, mountFUSE)
		}
		return version, nil
	case "3":
		// The node runs no status monitor. Without it the kernel refuses locks of version 3.
		if !nolock && !p.fuse {
			return "", fmt.Errorf(
				"version 3 needs the mount option nolock, as no rpc.statd is started; versions 4 have locks of their own")
		}
		return version, nil
	}
	return "", fmt.Errorf("mount option vers=%s: use 4.2, 4.1, 4.0 or 3", version)
}
