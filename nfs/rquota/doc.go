// Package rquota serves the remote quota protocol, versions 1 and 2, by which users learn their
// quotas. There is no RFC: the protocol is that of SunOS's rquotad(8), and of the package quota of
// Linux distributions, whose rquota.x has the types. Quotas cannot be set. The package knows no
// transport.
//
// Begin reading at Programs. The procedures run on several goroutines, and share nothing.
// EncodeArgs and Decode are for clients.
//
//	srv := rpc.NewServer(rpc.ServerConfig{Programs: rquota.Programs(cfg, time.Now)})
package rquota
