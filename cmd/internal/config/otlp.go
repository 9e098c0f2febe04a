package config

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
)

// OTLP configures traces of calls to an OpenTelemetry collector. Without an endpoint there are
// none.
type OTLP struct {
	// Endpoint is the base URL of the collector, http or https.
	Endpoint string `mapstructure:"endpoint" yaml:"endpoint"`
	// Sample is the part of the calls that is traced, 0 to 1.
	Sample float64 `mapstructure:"sample" yaml:"sample"`
	// CA is a PEM file of the authorities of the collector's certificate; empty: those of the host.
	CA string `mapstructure:"ca" yaml:"ca,omitempty"`
}

// defaultSample is a call of a hundred.
const defaultSample = 0.01

func (o *OTLP) validate() error {
	if !(o.Sample >= 0 && o.Sample <= 1) { // not a number is neither
		return fmt.Errorf("sample: %v is not within 0 to 1", o.Sample)
	}
	if o.CA != "" && !filepath.IsAbs(o.CA) {
		return fmt.Errorf("ca: %q is not an absolute path", o.CA)
	}
	if o.Endpoint == "" {
		return nil
	}
	u, err := url.Parse(o.Endpoint)
	switch {
	case err != nil:
		return errors.New("endpoint: this is not a URL")
	case u.User != nil:
		return errors.New("endpoint: a URL with a password in it would be shown to everyone who reads the configuration")
	case u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("endpoint: %q is not as http://127.0.0.1:4318", o.Endpoint)
	case o.CA != "" && u.Scheme != "https":
		return errors.New("ca: says whose certificates of the collector are accepted, but its endpoint is not https")
	}
	return nil
}
