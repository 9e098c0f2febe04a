// Command csicall makes single calls to a CSI driver, as the sidecars of Kubernetes and kubelet do:
//
//	csicall SOCKET create NAME [BYTES] [KEY=VALUE]...     prints the volume, as JSON
//	csicall SOCKET attach|detach VOLUME-JSON NODE
//	csicall SOCKET expand VOLUME-JSON BYTES               prints the size, in bytes
//	csicall SOCKET publish VOLUME-JSON PATH [ro] [OPTION]...
//	csicall SOCKET unpublish VOLUME-JSON PATH
//	csicall SOCKET stats VOLUME-JSON PATH                 prints the usage, as JSON
//	csicall SOCKET delete VOLUME-JSON
//
// VOLUME-JSON is a file with what create has printed.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "csicall:", err)
		os.Exit(1)
	}
}

type volume struct {
	ID      string            `json:"id"`
	Context map[string]string `json:"context"`
}

func run(ctx context.Context, args []string) error {
	if len(args) < 3 {
		return errors.New("too few arguments")
	}
	conn, err := grpc.NewClient("unix://"+args[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	c, n := csi.NewControllerClient(conn), csi.NewNodeClient(conn)
	if args[1] == "create" {
		return create(ctx, c, args[2], args[3:])
	}
	b, err := os.ReadFile(args[2])
	if err != nil {
		return err
	}
	var v volume
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	if args[1] == "delete" {
		_, err = c.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: v.ID})
		return err
	}
	if len(args) < 4 {
		return errors.New("no path, node or size")
	}
	path, opts := args[3], args[4:]
	switch args[1] {
	case "attach":
		_, err = c.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{
			VolumeId: v.ID, VolumeContext: v.Context, NodeId: args[3], VolumeCapability: capability(),
		})
	case "detach":
		_, err = c.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: v.ID, NodeId: args[3]})
	case "expand":
		n, perr := strconv.ParseInt(args[3], 10, 64)
		if perr != nil {
			return perr
		}
		var r *csi.ControllerExpandVolumeResponse
		if r, err = c.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
			VolumeId: v.ID, CapacityRange: &csi.CapacityRange{RequiredBytes: n},
		}); err == nil {
			fmt.Println(r.GetCapacityBytes())
		}
	case "publish":
		readOnly := len(opts) > 0 && opts[0] == "ro"
		if readOnly {
			opts = opts[1:]
		}
		_, err = n.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
			VolumeId: v.ID, VolumeContext: v.Context, TargetPath: path, Readonly: readOnly,
			VolumeCapability: capability(opts...),
		})
	case "unpublish":
		_, err = n.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: v.ID, TargetPath: path})
	case "stats":
		var s *csi.NodeGetVolumeStatsResponse
		if s, err = n.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: v.ID, VolumePath: path}); err == nil {
			err = json.NewEncoder(os.Stdout).Encode(s.GetUsage())
		}
	default:
		return fmt.Errorf("%q is no call", args[1])
	}
	return err
}

func create(ctx context.Context, c csi.ControllerClient, name string, args []string) error {
	r := &csi.CreateVolumeRequest{
		Name: name, Parameters: map[string]string{},
		VolumeCapabilities: []*csi.VolumeCapability{capability()},
	}
	for _, a := range args {
		if k, v, ok := strings.Cut(a, "="); ok {
			r.Parameters[k] = v
			continue
		}
		n, err := strconv.ParseInt(a, 10, 64)
		if err != nil {
			return err
		}
		r.CapacityRange = &csi.CapacityRange{RequiredBytes: n}
	}
	res, err := c.CreateVolume(ctx, r)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(volume{
		ID:      res.GetVolume().GetVolumeId(),
		Context: res.GetVolume().GetVolumeContext(),
	})
}

func capability(options ...string) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{MountFlags: options}},
	}
}
