package config

import (
	"errors"
)

// ControlTLS lets other hosts control the daemon, by TLS with certificates on both sides. Nothing
// listens unless Listen says so.
type ControlTLS struct {
	// Listen are addresses, as OpsListen.
	Listen []string `mapstructure:"listen" yaml:"listen"`
	// Cert and Key are files of the server's certificate, ClientCA is one with the authorities that
	// certificates of clients must come from. PEM.
	Cert     string `mapstructure:"certificate" yaml:"certificate"`
	Key      string `mapstructure:"key" yaml:"key"`
	ClientCA string `mapstructure:"client_ca" yaml:"client_ca"`
	// Admins and Readers are the names in certificates of administrators and of readers; "*" is
	// everyone. A name on neither list may do nothing.
	Admins  []string `mapstructure:"admins" yaml:"admins"`
	Readers []string `mapstructure:"readers" yaml:"readers"`
}

// Complete reports what is missing for control from other hosts.
func (c *ControlTLS) Complete() error {
	switch {
	case c.Cert == "" || c.Key == "":
		return errors.New("certificate and key: a certificate of the server is needed")
	case c.ClientCA == "":
		return errors.New("client_ca: the authority of clients' certificates is needed; " +
			"without it nobody could be told from anybody")
	}
	return nil
}

// Warning is non-empty if the daemon listens but no name may control it.
func (c *ControlTLS) Warning() string {
	if len(c.Listen) == 0 || len(c.Admins) > 0 || len(c.Readers) > 0 {
		return ""
	}
	return "control_tls: nobody may control this server from other hosts until " +
		"control_tls.admins or control_tls.readers name somebody"
}

func (c *ControlTLS) validate() error {
	err := absolutePaths([]string{"certificate", "key", "client_ca"}, c.Cert, c.Key, c.ClientCA)
	if err != nil || len(c.Listen) == 0 {
		return err
	}
	return c.Complete()
}
