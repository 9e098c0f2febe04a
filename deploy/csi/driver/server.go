package driver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/rstored/rstored/nfs/dial"
)

// Name is what StorageClasses and CSIDriver call this driver.
const Name = "rstored.github.io"

// Config configures a process.
type Config struct {
	Endpoint   string // unix:///path
	NodeID     string // at most 192 bytes
	Version    string
	Controller bool // serve the Controller service
	Node       bool // serve the Node service
	Mounter    Mounter
	// Topology is where the node is; nil is DefaultTopology.
	Topology map[string]string
	// Control are the controller's files for the control interface of servers.
	Control ControlFiles
	// GiveUp bounds the time that a call of the controller waits for a server that does not answer.
	GiveUp time.Duration
	Log    *zap.Logger
}

// Serve serves until ctx ends, and then completes the calls in progress.
func Serve(ctx context.Context, cfg Config) error {
	if !cfg.Controller && !cfg.Node {
		return errors.New("nothing to serve: give --controller, --node, or both")
	}
	const longest = 192 // of a node's identifier (NodeGetInfoResponse)
	if len(cfg.NodeID) > longest {
		return fmt.Errorf("the node's name is longer than %d bytes: %s", longest, cfg.NodeID)
	}
	if cfg.Topology == nil {
		cfg.Topology = DefaultTopology
	}
	if err := CheckTopology(cfg.Topology); err != nil {
		return err
	}
	l, err := listen(cfg.Endpoint)
	if err != nil {
		return err
	}
	dialer := &dial.Dialer{GiveUp: cfg.GiveUp}
	defer dialer.Close()
	s := newServer(cfg, dialer)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		force := time.AfterFunc(10*time.Second, s.Stop)
		defer force.Stop()
		s.GracefulStop()
	}()
	cfg.Log.Info("serving", zap.String("endpoint", cfg.Endpoint), zap.String("version", cfg.Version),
		zap.String("node", cfg.NodeID))
	if err := s.Serve(l); err != nil {
		return err
	}
	<-stopped
	return nil
}

// newServer makes a gRPC server with the services of cfg.
func newServer(cfg Config, dialer *dial.Dialer) *grpc.Server {
	s := grpc.NewServer(grpc.UnaryInterceptor(logged(cfg.Log)))
	csi.RegisterIdentityServer(s, &identity{version: cfg.Version})
	if cfg.Controller {
		csi.RegisterControllerServer(s, &controller{servers: &remote{dialer}, exports: &control{cfg.Control}})
	}
	if cfg.Node {
		csi.RegisterNodeServer(s, &node{id: cfg.NodeID, mounter: cfg.Mounter, topology: cfg.Topology})
	}
	return s
}

// listen opens the socket of an endpoint. It replaces the socket of a process that has ended.
func listen(endpoint string) (net.Listener, error) {
	name, ok := strings.CutPrefix(endpoint, "unix://")
	if !ok || !strings.HasPrefix(name, "/") {
		return nil, fmt.Errorf("--endpoint %s: use unix:///path of a socket", endpoint)
	}
	if i, err := os.Lstat(name); err == nil {
		if i.Mode()&fs.ModeSocket == 0 {
			return nil, fmt.Errorf("--endpoint %s: something else is there", endpoint)
		}
		c, err := net.Dial("unix", name)
		if err == nil {
			c.Close()
			return nil, fmt.Errorf("--endpoint %s: another process serves there", endpoint)
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return nil, err
		}
		if err := os.Remove(name); err != nil {
			return nil, err
		}
	}
	return net.Listen("unix", name)
}

// logged writes a line for each call: a failure as an error, a success that changes something as
// information.
func logged(log *zap.Logger) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, call grpc.UnaryHandler) (any, error) {
		begin := time.Now()
		res, err := call(ctx, req)
		method := info.FullMethod[strings.LastIndexByte(info.FullMethod, '/')+1:]
		line := log.With(zap.String("method", method), zap.Duration("took", time.Since(begin).Round(time.Microsecond)))
		if r, ok := req.(interface{ GetVolumeId() string }); ok {
			line = line.With(zap.String("volume", r.GetVolumeId()))
		}
		if r, ok := req.(interface{ GetTargetPath() string }); ok {
			line = line.With(zap.String("path", r.GetTargetPath()))
		}
		level := zapcore.DebugLevel
		switch {
		case err != nil:
			line.Error("failed", zap.Stringer("code", status.Code(err)), zap.String("error", status.Convert(err).Message()))
			return res, err
		case method == "CreateVolume":
			line = line.With(zap.String("volume", res.(*csi.CreateVolumeResponse).GetVolume().GetVolumeId()))
			level = zapcore.InfoLevel
		case method == "DeleteVolume", strings.HasSuffix(method, "Snapshot"), method == "ControllerExpandVolume",
			strings.HasSuffix(method, "publishVolume"), strings.HasSuffix(method, "PublishVolume"):
			level = zapcore.InfoLevel
		}
		line.Log(level, "done")
		return res, err
	}
}

// identity is the Identity service.
type identity struct {
	csi.UnimplementedIdentityServer
	version string
}

// GetPluginInfo implements csi.IdentityServer.
func (i *identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: Name, VendorVersion: i.version}, nil
}

// GetPluginCapabilities implements csi.IdentityServer. It reports the Controller service in every
// process of the plugin, also in one that does not serve it.
func (i *identity) GetPluginCapabilities(
	context.Context, *csi.GetPluginCapabilitiesRequest,
) (*csi.GetPluginCapabilitiesResponse, error) {
	controller := &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE}
	topology := &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS}
	online := &csi.PluginCapability_VolumeExpansion{Type: csi.PluginCapability_VolumeExpansion_ONLINE}
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{
		{Type: &csi.PluginCapability_Service_{Service: controller}},
		{Type: &csi.PluginCapability_Service_{Service: topology}},
		{Type: &csi.PluginCapability_VolumeExpansion_{VolumeExpansion: online}},
	}}, nil
}

// Probe implements csi.IdentityServer. It reports only that the process answers, because a restart
// of the process does not help against a failed NFS server.
func (i *identity) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

// busy are the names that calls work on. A second call for a name gets ABORTED.
type busy struct {
	mu  sync.Mutex
	set map[string]bool
}

// take reserves a name until release is called.
func (b *busy) take(what string) (release func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.set[what] {
		return nil, status.Errorf(codes.Aborted, "another call works on %s", what)
	}
	if b.set == nil {
		b.set = make(map[string]bool)
	}
	b.set[what] = true
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.set, what)
	}, nil
}
